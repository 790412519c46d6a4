//! Formats numbers for people.

/// `bits` with a decimal prefix and three significant digits: `1.07 Mbit`.
pub fn bits(bits: u64) -> String {
    const UNITS: [&str; 6] = ["kbit", "Mbit", "Gbit", "Tbit", "Pbit", "Ebit"];
    if bits < 1_000 { exact_bits(bits) } else { prefixed(bits, UNITS) }
}

/// `bytes` with a decimal prefix and three significant digits: `1.07 MB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1_000 { counted(bytes, "byte") } else { prefixed(bytes, UNITS) }
}

/// Removes zeros after the decimal point: `20 kbit` for `20.0 kbit`.
pub fn round(text: &str) -> String {
    text.replace(".00 ", " ").replace(".0 ", " ")
}

/// Formats a number of at least 1000 with the largest prefix that leaves at least 1.
fn prefixed(number: u64, units: [&str; 6]) -> String {
    let (mut scaled, mut unit) = (number as f64 / 1e3, 0);
    while scaled >= 999.5 {
        (scaled, unit) = (scaled / 1e3, unit + 1);
    }
    format!("{} {}", significant(scaled), units[unit])
}

/// A number of bits with all digits: `1,070,112 bits`.
pub fn exact_bits(bits: u64) -> String {
    counted(bits, "bit")
}

/// A number with its noun in the singular or plural: `1 tensor`, `3,936 elements`.
pub fn counted(number: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// A number of bits with all digits, and from 1,000 on also with a prefix: `1,070,112 bits (1.07 Mbit)`.
pub fn bits_both(number: u64) -> String {
    if number < 1_000 { exact_bits(number) } else { format!("{} ({})", exact_bits(number), bits(number)) }
}

/// A number with digits in groups of three: `1,070,112`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A number with three significant digits, without an exponent between 0.001 and a million.
pub fn significant(x: f64) -> String {
    let magnitude = x.abs();
    match magnitude {
        0.0 => "0".into(),
        m if !(0.000_999_5..999_500.0).contains(&m) => format!("{x:.2e}"),
        m if m >= 99.95 => format!("{x:.0}"),
        m if m >= 9.995 => format!("{x:.1}"),
        m if m >= 0.9995 => format!("{x:.2}"),
        m if m >= 0.099_95 => format!("{x:.3}"),
        m if m >= 0.009_995 => format!("{x:.4}"),
        _ => format!("{x:.5}"),
    }
}

/// The compression ratio `whole / part`: `7.76×`, or a dash if `part` is 0.
pub fn ratio(whole: u64, part: u64) -> String {
    if part == 0 { "-".into() } else { format!("{}×", significant(whole as f64 / part as f64)) }
}

/// Seconds with a decimal prefix: `3.2 ms`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 0.999_5e-3 => format!("{} µs", significant(s * 1e6)),
        s if s < 0.999_5 => format!("{} ms", significant(s * 1e3)),
        s => format!("{} s", significant(s)),
    }
}

/// Dimensions as text: `64×3×3×3`, or `scalar`.
pub fn shape(dims: &[usize]) -> String {
    if dims.is_empty() {
        return "scalar".into();
    }
    dims.iter().map(usize::to_string).collect::<Vec<_>>().join("×")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_kept_at_every_size() {
        let written: Vec<_> =
            [0.0, 1.0, 9.996, 12.34, 99.96, 123.4, 0.5, 0.0999, 0.00123, 1e-5, 1e7].map(significant).into();
        assert_eq!(
            written,
            ["0", "1.00", "10.0", "12.3", "100", "123", "0.500", "0.0999", "0.00123", "1.00e-5", "1.00e7"]
        );
    }

    #[test]
    fn units() {
        assert_eq!(
            [0, 1, 999, 1_000, 999_499, 999_500, u64::MAX].map(bits),
            ["0 bits", "1 bit", "999 bits", "1.00 kbit", "999 kbit", "1.00 Mbit", "18.4 Ebit"]
        );
        assert_eq!([0, 1, 999_500, 45_000_000].map(bytes), ["0 bytes", "1 byte", "1.00 MB", "45.0 MB"]);
        assert_eq!(["20.0 kbit", "1.00 MB", "1.50 MB", "100 MB"].map(round), ["20 kbit", "1 MB", "1.50 MB", "100 MB"]);
        assert_eq!([1, 100, 1_070_112].map(bits_both), ["1 bit", "100 bits", "1,070,112 bits (1.07 Mbit)"]);
        assert_eq!([0, 1, 3_936].map(|n| counted(n, "tensor")), ["0 tensors", "1 tensor", "3,936 tensors"]);
        assert_eq!([0, 999, 1_000, 1_070_112].map(grouped), ["0", "999", "1,000", "1,070,112"]);
        assert_eq!([2e-7, 4.5e-4, 0.0123, 2.0].map(seconds), ["0.200 µs", "450 µs", "12.3 ms", "2.00 s"]);
        assert_eq!((ratio(32, 4), ratio(1, 0)), ("8.00×".into(), "-".into()));
        assert_eq!((shape(&[]), shape(&[64, 3, 3])), ("scalar".into(), "64×3×3".into()));
    }
}
