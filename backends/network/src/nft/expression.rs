//! The expressions of a rule, as the kernel has them: each loads a value into a register, compares one, or decides.

use super::element::{DATA_VALUE, LIST_ELEMENT};
use super::message::{NfWriter, attribute, attributes, number, text};

/// `NFTA_EXPR_NAME`.
const NAME: u16 = 1;
/// `NFTA_EXPR_DATA`.
const DATA: u16 = 2;
/// `NFTA_DATA_VERDICT`, `NFTA_VERDICT_CODE`.
const VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
/// `NF_DROP`, `NF_ACCEPT`.
const DROP: u32 = 0;
const ACCEPT: u32 = 1;
/// `NFT_CMP_EQ`, `NFT_CMP_NEQ`.
const COMPARE: [u32; 2] = [0, 1];
/// `NFT_LOOKUP_F_INV`.
const INVERTED: u32 = 1;
/// `NFT_NAT_DNAT`.
const DNAT: u32 = 1;
/// The first register of four bytes; 8 to 11 are also register 1 of 16 bytes, 12 to 15 register 2, and so on.
pub(super) const FIRST: u32 = 8;

/// An expression. Registers are those of four bytes: where a register is shown as one of 16 bytes, its first four bytes are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expression {
    /// Loads a fact about the packet (`enum nft_meta_keys`).
    Meta { key: u32, to: u32 },
    /// Loads a part of the packet: from the header of the network (1) or of the transport (2).
    Payload {
        base: u32,
        offset: u32,
        length: u32,
        to: u32,
    },
    /// Loads a fact about the connection (`enum nft_ct_keys`).
    Conntrack { key: u32, to: u32 },
    /// Loads what the routing table knows (`enum nft_fib_result`, `enum nft_fib_flags`).
    Fib { result: u32, flags: u32, to: u32 },
    /// Continues only if a register has this value, or has not.
    Compare {
        from: u32,
        equal: bool,
        value: Vec<u8>,
    },
    /// Keeps some bits of a register.
    Mask { register: u32, mask: Vec<u8> },
    /// Continues only if a set has the key, or has not; a map loads what the key leads to.
    Lookup {
        set: String,
        from: u32,
        to: Option<u32>,
        inverted: bool,
    },
    /// Changes the destination to the address and port in these registers.
    TranslateDestination { family: u8, address: u32, port: u32 },
    /// Changes the source to the address of the device by which the packet leaves.
    Masquerade,
    /// Accepts the packet in this chain; it goes on to the chains behind it.
    Accept,
    /// Drops the packet.
    Drop,
    /// Another one, which is not ours.
    Foreign(String),
}

impl Expression {
    /// Writes it as a part of a rule's list.
    pub(super) fn write(&self, to: &mut NfWriter) {
        to.nest(LIST_ELEMENT, |part| {
            part.text(NAME, self.name());
            part.nest(DATA, |data| self.write_data(data));
        });
    }

    fn name(&self) -> &str {
        match self {
            Self::Meta { .. } => "meta",
            Self::Payload { .. } => "payload",
            Self::Conntrack { .. } => "ct",
            Self::Fib { .. } => "fib",
            Self::Compare { .. } => "cmp",
            Self::Mask { .. } => "bitwise",
            Self::Lookup { .. } => "lookup",
            Self::TranslateDestination { .. } => "nat",
            Self::Masquerade => "masq",
            Self::Accept | Self::Drop => "immediate",
            Self::Foreign(name) => name,
        }
    }

    fn write_data(&self, data: &mut NfWriter) {
        let value = |data: &mut NfWriter, kind: u16, value: &[u8]| {
            data.nest(kind, |nested| nested.bytes(DATA_VALUE, value));
        };
        match self {
            Self::Meta { key, to } => numbers(data, &[(1, *to), (2, *key)]),
            Self::Payload {
                base,
                offset,
                length,
                to,
            } => numbers(data, &[(1, *to), (2, *base), (3, *offset), (4, *length)]),
            Self::Conntrack { key, to } => numbers(data, &[(1, *to), (2, *key)]),
            Self::Fib { result, flags, to } => {
                numbers(data, &[(1, *to), (2, *result), (3, *flags)])
            }
            Self::Compare {
                from,
                equal,
                value: with,
            } => {
                numbers(data, &[(1, *from), (2, COMPARE[usize::from(!equal)])]);
                value(data, 3, with);
            }
            Self::Mask { register, mask } => {
                let length = u32::try_from(mask.len()).unwrap_or(u32::MAX);
                numbers(data, &[(1, *register), (2, *register), (3, length)]);
                value(data, 4, mask);
                value(data, 5, &vec![0; mask.len()]);
            }
            Self::Lookup {
                set,
                from,
                to,
                inverted,
            } => {
                data.text(1, set);
                data.number(2, *from);
                if let Some(to) = to {
                    data.number(3, *to);
                }
                if *inverted {
                    data.number(5, INVERTED);
                }
            }
            Self::TranslateDestination {
                family,
                address,
                port,
            } => numbers(
                data,
                &[
                    (1, DNAT),
                    (2, u32::from(*family)),
                    (3, *address),
                    (5, *port),
                ],
            ),
            Self::Accept => decide(data, ACCEPT),
            Self::Drop => decide(data, DROP),
            Self::Masquerade | Self::Foreign(_) => {}
        }
    }

    /// Reads a part of a rule's list.
    pub(super) fn read(part: &[u8]) -> Self {
        let name = text(part, NAME).unwrap_or_default();
        let data = attribute(part, DATA).unwrap_or_default();
        Self::read_data(name, data).unwrap_or_else(|| Self::Foreign(name.to_owned()))
    }

    fn read_data(name: &str, data: &[u8]) -> Option<Self> {
        let register = |kind: u16| number(data, kind).map(four_byte_register);
        let value = |kind: u16| Some(attribute(attribute(data, kind)?, DATA_VALUE)?.to_vec());
        Some(match name {
            "meta" => Self::Meta {
                key: number(data, 2)?,
                to: register(1)?,
            },
            "payload" => Self::Payload {
                base: number(data, 2)?,
                offset: number(data, 3)?,
                length: number(data, 4)?,
                to: register(1)?,
            },
            "ct" => Self::Conntrack {
                key: number(data, 2)?,
                to: register(1)?,
            },
            "fib" => Self::Fib {
                result: number(data, 2)?,
                flags: number(data, 3)?,
                to: register(1)?,
            },
            "cmp" => Self::Compare {
                from: register(1)?,
                equal: COMPARE
                    .iter()
                    .position(|code| Some(*code) == number(data, 2))?
                    == 0,
                value: value(3)?,
            },
            "bitwise" => {
                let only_masks =
                    value(5)?.iter().all(|byte| *byte == 0) && register(1) == register(2);
                only_masks.then_some(Self::Mask {
                    register: register(1)?,
                    mask: value(4)?,
                })?
            }
            "lookup" => Self::Lookup {
                set: text(data, 1)?.to_owned(),
                from: register(2)?,
                to: register(3),
                inverted: number(data, 5).unwrap_or(0) & INVERTED != 0,
            },
            "nat" if number(data, 1)? == DNAT => Self::TranslateDestination {
                family: u8::try_from(number(data, 2)?).ok()?,
                address: register(3)?,
                port: register(5)?,
            },
            "masq" if attributes(data).next().is_none() => Self::Masquerade,
            "immediate" => {
                let verdict = attribute(attribute(data, 2)?, VERDICT)?;
                match (number(data, 1)?, number(verdict, VERDICT_CODE)?) {
                    (0, ACCEPT) => Self::Accept,
                    (0, DROP) => Self::Drop,
                    _ => return None,
                }
            }
            _ => return None,
        })
    }
}

/// Returns the register of four bytes at which a register begins: the kernel shows those at the beginning of a register of 16 bytes as
/// that register.
fn four_byte_register(number: u32) -> u32 {
    match number {
        1..=4 => FIRST + (number - 1) * 4,
        _ => number,
    }
}

/// Writes a verdict, which is a value for register 0.
fn decide(data: &mut NfWriter, code: u32) {
    data.number(1, 0);
    data.nest(2, |nested| {
        nested.nest(VERDICT, |verdict| verdict.number(VERDICT_CODE, code));
    });
}

fn numbers(to: &mut NfWriter, all: &[(u16, u32)]) {
    all.iter()
        .for_each(|(kind, value)| to.number(*kind, *value));
}
