//! Parses Kubernetes quantities: `10M`, `1.5Gi`, `2e3`.

/// The value as a whole number, rounded up; `None` if the text is malformed, negative, or exceeds `u64`.
pub(super) fn parse(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let digits = format!("{whole}{fraction}");
    // Leading zeros do not count towards the length; what remains fits, or is too large in any unit but the
    // smallest.
    let digits = digits.trim_start_matches('0');
    let mantissa: u128 = if digits.is_empty() {
        0
    } else {
        digits.parse().ok()?
    };
    let scale = scale(suffix)?;
    let (times, exponent) = match scale {
        Scale::Binary(power) => (1_u128.checked_shl(power)?, 0),
        Scale::Decimal(exponent) => (1, exponent),
    };
    let exponent = exponent - i32::try_from(fraction.len()).ok()?;
    let mantissa = mantissa.checked_mul(times)?;
    let power = |n: u32| 10_u128.checked_pow(n);
    let value = if mantissa == 0 {
        0
    } else if exponent >= 0 {
        mantissa.checked_mul(power(exponent.unsigned_abs())?)?
    } else {
        // If the divisor overflows, the value is less than one, which is rounded up.
        power(exponent.unsigned_abs()).map_or(1, |divisor| mantissa.div_ceil(divisor))
    };
    u64::try_from(value).ok()
}

enum Scale {
    /// A power of two.
    Binary(u32),
    /// A power of ten.
    Decimal(i32),
}

fn scale(suffix: &str) -> Option<Scale> {
    Some(match suffix {
        "" => Scale::Decimal(0),
        "n" => Scale::Decimal(-9),
        "u" => Scale::Decimal(-6),
        "m" => Scale::Decimal(-3),
        "k" => Scale::Decimal(3),
        "M" => Scale::Decimal(6),
        "G" => Scale::Decimal(9),
        "T" => Scale::Decimal(12),
        "P" => Scale::Decimal(15),
        "E" => Scale::Decimal(18),
        "Ki" => Scale::Binary(10),
        "Mi" => Scale::Binary(20),
        "Gi" => Scale::Binary(30),
        "Ti" => Scale::Binary(40),
        "Pi" => Scale::Binary(50),
        "Ei" => Scale::Binary(60),
        other => {
            let exponent = other.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?;
            Scale::Decimal(Some(exponent).filter(|n| n.abs() <= 100)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::parse;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, expected: impl Into<Option<u64>>) {
        assert_eq!(parse(text), expected.into(), "{text}");
    }

    #[test]
    fn quantity_suffixes_scale() {
        check("0", 0);
        check("10", 10);
        check("+10", 10);
        check("10k", 10_000);
        check("10M", 10_000_000);
        check("1G", 1_000_000_000);
        check("1T", 1_000_000_000_000);
        check("1P", 1_000_000_000_000_000);
        check("1E", 1_000_000_000_000_000_000);
        check("1Ki", 1024);
        check("1Mi", 1 << 20);
        check("1.5Gi", 3 << 29);
        check("1Ti", 1 << 40);
        check("1Pi", 1 << 50);
        check("1Ei", 1 << 60);
        check("2e3", 2000);
        check("2E3", 2000);
        check("25e-1", 3);
    }

    #[test]
    fn fractions_are_rounded_up() {
        check("1500m", 2);
        check("1m", 1);
        check("1n", 1);
        check("1e-90", 1);
        check(".5", 1);
        check("5.", 5);
        check("1.0000001", 2);
    }

    #[test]
    fn malformed_quantity_is_rejected() {
        for text in [
            "", ".", "-1", "1.2.3", "x", "1 M", "1K", "1mi", "1e", "e3", "16Ei", "100E", "1e101",
            "0x10",
        ] {
            check(text, None);
        }
    }

    proptest! {
        #[test]
        fn quantity_without_suffix_is_itself(number in any::<u64>()) {
            prop_assert_eq!(parse(&number.to_string()), Some(number));
        }

        #[test]
        fn any_text_parses_without_panic(text in "\\PC{0,40}") {
            parse(&text);
        }

        #[test]
        fn near_quantities_parse_without_panic(text in "[0-9]{0,45}\\.?[0-9]{0,45}(Ei|E|e-?[0-9]{1,12}|n)?") {
            parse(&text);
        }
    }
}
