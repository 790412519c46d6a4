//! Divides items into packs. The items of a pack are processed together, because all their data fit into memory limits.

/// Cuts `items` into packs for which `fits` returns true. An item that does not fit even alone gets a separate pack.
pub(crate) fn packs<T>(items: &[T], fits: impl Fn(&[T]) -> bool) -> Vec<&[T]> {
    let mut packs = Vec::new();
    let mut start = 0;
    for end in 1..=items.len() {
        if end == items.len() || !fits(&items[start..=end]) {
            packs.push(&items[start..end]);
            start = end;
        }
    }
    packs
}

#[cfg(test)]
mod tests {
    use super::packs;

    #[test]
    fn what_fits_together_is_together() {
        let fits = |sizes: &[u32]| sizes.iter().sum::<u32>() <= 10;
        let cut = packs(&[3, 7, 1, 20, 4, 6, 5], fits);
        assert_eq!(cut, [&[3, 7][..], &[1], &[20], &[4, 6], &[5]]);
        assert!(packs(&[], fits).is_empty());
    }
}
