use lgreco::file::{PlanFile, TableFile};
use lgreco::rng::Stream;
use lgreco_testing::documents::*;

#[test]
fn tokens_are_all_of_the_text() {
    for json in [TABLE, PLAN, BARE_TABLE, SIZED_PLAN, "", " ", "\"unended", "1 2"] {
        assert_eq!(tokens(json).concat(), json);
    }
}

#[test]
fn changed_documents_are_read_or_refused() {
    let mut read = 0;
    for step in 0..4000 {
        let stream = Stream { seed: 13, step, ..Stream::default() };
        let bytes: Vec<u8> = (0..4 + 3 * u64::from(step % 3)).map(|i| (stream.word(i) >> 24) as u8).collect();
        check_documents(&bytes);
        let json = document(&bytes);
        let json = json.as_bytes();
        read += usize::from(TableFile::parse(json).is_ok() || PlanFile::parse(json).is_ok());
    }
    assert!((40..3600).contains(&read), "{read} of 4000 changed documents were read");
}
