//! Derives inputs from the stored ones: a few mutations each, of the kinds that break parsers. The same in
//! every run.

/// The maximum size of a generated input, in bytes.
const MOST: usize = 64 << 10;

/// Numbers at the edges of their types.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];

/// Texts at the edges of formats.
const WORDS: [&str; 16] = [
    "\0",
    "\n",
    "\"",
    "\\u0000",
    "..",
    "/",
    "-1",
    "4294967295",
    "4294967296",
    "18446744073709551616",
    "1e999",
    "null",
    "[]",
    "{}",
    "\u{fffd}",
    "\u{202e}",
];

/// Makes inputs.
pub(super) struct Mutator<'k> {
    kept: &'k [Vec<u8>],
    /// xorshift64*.
    state: u64,
}

impl<'k> Mutator<'k> {
    pub(super) fn new(kept: &'k [Vec<u8>]) -> Self {
        Self {
            kept,
            state: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// A number below `limit`, or 0.
    fn below(&mut self, limit: usize) -> usize {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let number = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(number).unwrap_or(0) % limit.max(1)
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap_or(0)
    }

    /// The next input.
    pub(super) fn next(&mut self) -> Vec<u8> {
        let mut input = self
            .kept
            .get(self.below(self.kept.len()))
            .cloned()
            .unwrap_or_default();
        for _ in 0..=self.below(5) {
            self.change(&mut input);
        }
        input.truncate(MOST);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        let end = at + self.below((input.len() - at).min(64) + 1);
        match self.below(9) {
            0 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << self.below(8);
                }
            }
            1 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = self.byte();
                }
            }
            2 => drop(input.drain(at..end)),
            3 => {
                let more: Vec<u8> = (0..self.below(8)).map(|_| self.byte()).collect();
                input.splice(at..at, more).for_each(drop);
            }
            4 => {
                // Depth, and length: a few bytes, many times.
                let end = end.min(at + 8);
                let more = input[at..end].repeat([2, 16, 300, 5_000][self.below(4)]);
                input.splice(at..at, more).for_each(drop);
            }
            5 => {
                let edge = EDGES[self.below(EDGES.len())];
                let bytes = if self.below(2) == 0 {
                    edge.to_be_bytes()
                } else {
                    edge.to_le_bytes()
                };
                let width = [1, 2, 4, 8][self.below(4)];
                let number = if self.below(2) == 0 {
                    &bytes[8 - width..]
                } else {
                    &bytes[..width]
                };
                input
                    .splice(at..(at + width).min(input.len()), number.iter().copied())
                    .for_each(drop);
            }
            6 => {
                let word = WORDS[self.below(WORDS.len())];
                let end = if self.below(2) == 0 { at } else { end };
                input.splice(at..end, word.bytes()).for_each(drop);
            }
            7 => {
                let other = &self.kept[self.below(self.kept.len())];
                let from = self.below(other.len() + 1);
                let to = from + self.below((other.len() - from).min(256) + 1);
                input
                    .splice(at..end, other[from..to].iter().copied())
                    .for_each(drop);
            }
            _ => input.truncate(at),
        }
    }
}
