//! Sizes as texts.

/// A size in bytes in Docker's notation: `64m`, `10G`, `1024`, `1.5g`, `10GiB`.
#[must_use]
pub fn size(text: &str) -> Option<u64> {
    let lower = text.trim().to_ascii_lowercase();
    let lower = lower
        .strip_suffix("ib")
        .or_else(|| lower.strip_suffix('b'))
        .unwrap_or(&lower);
    let letter = lower.chars().next_back()?;
    let (digits, shift) = match ['k', 'm', 'g', 't', 'p']
        .iter()
        .position(|unit| *unit == letter)
    {
        Some(index) => (
            &lower[..lower.len() - 1],
            10 * (u32::try_from(index).ok()? + 1),
        ),
        None => (lower, 0),
    };
    let (whole, fraction) = digits.trim().split_once('.').unwrap_or((digits.trim(), ""));
    if !whole
        .bytes()
        .chain(fraction.bytes())
        .all(|byte| byte.is_ascii_digit())
        || fraction.len() > 9
    {
        return None;
    }
    let unit = 1_u128 << shift;
    let mut bytes = whole
        .parse::<u64>()
        .ok()
        .map(u128::from)?
        .checked_mul(unit)?;
    if !fraction.is_empty() {
        let tens = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
        bytes += fraction.parse::<u128>().ok()? * unit / tens;
    }
    // Sizes are signed 64-bit numbers elsewhere.
    u64::try_from(bytes)
        .ok()
        .filter(|bytes| i64::try_from(*bytes).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_as_in_docker() {
        for (text, bytes) in [
            ("1024", 1024),
            ("1k", 1 << 10),
            ("64m", 64 << 20),
            ("64MB", 64 << 20),
            ("10G", 10 << 30),
            ("10GiB", 10 << 30),
            ("1.5g", 3 << 29),
            ("2 t", 2 << 40),
            ("7b", 7),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in [
            "",
            "g",
            "-1",
            "1x",
            "1.g.2",
            "9999999999g",
            "1e3",
            "+1",
            "99999999p",
        ] {
            assert_eq!(size(text), None, "{text:?}");
        }
    }
}
