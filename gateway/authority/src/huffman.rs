//! The Huffman code of HPACK (RFC 7541, appendix B). Decoding only: rewritten values are not coded.

use crate::malformed::Malformed;

/// The length of the longest code, in bits.
const LONGEST: usize = 30;

/// The lengths of the codes in bits, by symbol. The code is canonical: codes of one length are consecutive
/// numbers in the order of their symbols, and follow the shorter ones.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// The symbols in the order of their codes, and the number of codes of each length.
const CODE: ([u8; 256], [u32; LONGEST + 1]) = in_order();

const fn in_order() -> ([u8; 256], [u32; LONGEST + 1]) {
    let mut symbols = [0; 256];
    let mut counts = [0; LONGEST + 1];
    let mut length = 1;
    let mut next = 0;
    while length <= LONGEST {
        let mut symbol: u8 = 0;
        loop {
            if LENGTHS[symbol as usize] as usize == length {
                symbols[next] = symbol;
                counts[length] += 1;
                next += 1;
            }
            if symbol == u8::MAX {
                break;
            }
            symbol += 1;
        }
        length += 1;
    }
    (symbols, counts)
}

/// Calls `each` for every symbol of a string.
///
/// # Errors
/// [`Malformed`], after the symbols before the error: a code that does not exist, the end-of-string code, or
/// padding that is not a prefix of that code.
pub(crate) fn decode(coded: &[u8], mut each: impl FnMut(u8)) -> Result<(), Malformed> {
    let (symbols, counts) = &CODE;
    // The state of the current code: its bits, its length, the first code of that length, and the index of
    // that code's symbol.
    let mut code = 0_u32;
    let mut length = 0;
    let mut first = 0_u32;
    let mut place = 0;
    for bit in coded
        .iter()
        .flat_map(|byte| (0..8).rev().map(move |shift| u32::from(byte >> shift & 1)))
    {
        code = code << 1 | bit;
        length += 1;
        first <<= 1;
        let count = *counts.get(length).ok_or(Malformed)?;
        if code - first < count {
            each(*symbols.get(place + at(code - first)).ok_or(Malformed)?);
            (code, length, first, place) = (0, 0, 0, 0);
        } else {
            first += count;
            place += at(count);
        }
    }
    let padding = (1 << length.min(8)) - 1;
    if length < 8 && code == padding {
        Ok(())
    } else {
        Err(Malformed)
    }
}

/// Converts a number below 256 to an index.
fn at(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(coded: &[u8]) -> Result<Vec<u8>, Malformed> {
        let mut text = Vec::new();
        decode(coded, |symbol| text.push(symbol)).map(|()| text)
    }

    #[test]
    fn rfc_7541_examples_decode() {
        // RFC 7541, appendix C.4.
        assert_eq!(
            decoded(&[
                0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff
            ])
            .unwrap(),
            b"www.example.com"
        );
        assert_eq!(
            decoded(&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]).unwrap(),
            b"no-cache"
        );
        assert_eq!(decoded(&[]).unwrap(), b"");
    }

    #[test]
    fn invalid_huffman_padding_is_rejected() {
        assert!(decoded(&[0xff]).is_err());
        assert!(decoded(&[0xff; 5]).is_err());
        // The symbol 'a' is 00011; its padding must be ones.
        assert_eq!(decoded(&[0b0001_1111]).unwrap(), b"a");
        assert!(decoded(&[0b0001_1110]).is_err());
    }

    #[test]
    fn every_symbol_of_another_encoder_decodes() {
        for symbol in 0..=u8::MAX {
            let mut encoder = httlib_hpack::Encoder::default();
            let flags = httlib_hpack::Encoder::HUFFMAN_VALUE;
            let mut block = Vec::new();
            encoder
                .encode((b"x".to_vec(), vec![symbol; 3], flags), &mut block)
                .unwrap();
            // A literal: 0x00, the name 'x', then the value with its length.
            assert_eq!(block[..3], [0, 1, b'x']);
            assert_eq!(decoded(&block[4..]).unwrap(), [symbol; 3], "{symbol}");
        }
    }
}
