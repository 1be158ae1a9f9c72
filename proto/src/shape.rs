//! A bound on the memory that a message takes once it is decoded, checked before that.
//!
//! On the wire an empty message in a list has two bytes, and decoded it is a struct of hundreds: 4 MiB of
//! them are half a gigabyte. So a bound on the bytes of a message does not bound its memory. Therefore the
//! fields of a message are counted first, by the shapes that `proto/codegen` makes of the descriptors: a
//! refused message is never decoded (ADR 60).

use prost::encoding::{WireType, decode_varint};

/// Limit in bytes for the decoded structs of a message, besides its texts and bytes, which are as long as on
/// the wire: those of some ten thousand tasks of a swarm.
pub const STRUCTS_MAX: u64 = 64 << 20;

/// Shorter messages need not be counted: no struct is large enough.
const UNCOUNTED: usize = 8 << 10;

/// Maximum nesting of messages; prost refuses deeper ones.
const DEPTH_MAX: u32 = 100;

/// Overhead of an allocation in bytes.
const ALLOCATION: u64 = 16;

/// A message that calls take or return.
pub trait Shaped {
    /// Its place in [`SHAPES`](crate::SHAPES).
    const SHAPE: usize;
}

/// The fields of a struct that take memory of their own. The size of the struct itself is counted by the
/// field that contains it.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// By number. What is in none of them is in the struct itself.
    pub fields: &'static [Field],
}

/// A field.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its number.
    pub number: u32,
    /// Kind of its content.
    pub kind: Kind,
}

/// Kind of a field's content.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// Messages, or entries of a map.
    Message {
        /// Its place in [`SHAPES`](crate::SHAPES).
        shape: u16,
        /// Bytes of each; 0 if it is in the struct of its parent.
        each: u32,
    },
    /// Strings or bytes.
    Text {
        /// Bytes of each besides its content.
        each: u32,
    },
    /// A list of numbers.
    Numbers {
        /// Bytes of each.
        each: u32,
    },
}

/// The reason why a message is not decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Oversized {
    /// Too many parts.
    #[error(
        "the message has so many parts that they take more than {STRUCTS_MAX} bytes once they are decoded"
    )]
    Structs,
    /// Nothing sends groups, and what is in them cannot be counted.
    #[error("the message has a group, which no version of its protocol has")]
    Group,
}

/// The reason why counting ends early.
enum End {
    Oversized(Oversized),
    /// The decoder refuses the message at the same place.
    Malformed,
}

/// Returns the bytes that the structs of a message, or of the beginning of a malformed one, take once
/// decoded.
///
/// # Errors
/// [`Oversized`].
pub fn structs_of<M: Shaped>(bytes: &[u8]) -> Result<u64, Oversized> {
    let mut total = 0;
    match count(M::SHAPE, bytes, DEPTH_MAX, &mut total) {
        Ok(()) | Err(End::Malformed) => Ok(total),
        Err(End::Oversized(error)) => Err(error),
    }
}

/// Checks that a message can be decoded in bounded memory.
///
/// # Errors
/// [`Oversized`].
pub(crate) fn check<M: Shaped>(bytes: &[u8]) -> Result<(), Oversized> {
    if bytes.len() <= UNCOUNTED {
        return Ok(());
    }
    structs_of::<M>(bytes).map(drop)
}

/// Adds up the fields of a message, and of those in it.
fn count(shape: usize, bytes: &[u8], depth: u32, total: &mut u64) -> Result<(), End> {
    let Shape { fields } = crate::SHAPES[shape];
    let mut rest = bytes;
    while !rest.is_empty() {
        let key = number(&mut rest)?;
        let wire = WireType::try_from(key & 7).map_err(|_| End::Malformed)?;
        let number_of_field = u32::try_from(key >> 3).map_err(|_| End::Malformed)?;
        let place = fields.binary_search_by_key(&number_of_field, |field| field.number);
        let kind = place.ok().map(|place| fields[place].kind);
        let content = match wire {
            WireType::Varint => {
                number(&mut rest)?;
                None
            }
            WireType::ThirtyTwoBit => take(&mut rest, 4).map(|_| None)?,
            WireType::SixtyFourBit => take(&mut rest, 8).map(|_| None)?,
            WireType::LengthDelimited => {
                let len = usize::try_from(number(&mut rest)?).map_err(|_| End::Malformed)?;
                Some(take(&mut rest, len)?)
            }
            WireType::StartGroup | WireType::EndGroup => {
                return Err(End::Oversized(Oversized::Group));
            }
        };
        match (kind, content) {
            (None, _) => {}
            (Some(Kind::Message { shape, each }), Some(content)) => {
                add(total, u64::from(each))?;
                let depth = depth.checked_sub(1).ok_or(End::Malformed)?;
                count(usize::from(shape), content, depth, total)?;
            }
            (Some(Kind::Text { each }), Some(content)) => {
                let allocation = if content.is_empty() { 0 } else { ALLOCATION };
                add(total, u64::from(each) + allocation)?;
            }
            // Each has at least one byte.
            (Some(Kind::Numbers { each }), Some(packed)) => {
                add(total, u64::from(each) * packed.len() as u64)?
            }
            (Some(Kind::Numbers { each }), None) => add(total, u64::from(each))?,
            (Some(Kind::Message { .. } | Kind::Text { .. }), None) => return Err(End::Malformed),
        }
    }
    Ok(())
}

fn number(rest: &mut &[u8]) -> Result<u64, End> {
    decode_varint(rest).map_err(|_| End::Malformed)
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], End> {
    let (taken, after) = rest.split_at_checked(len).ok_or(End::Malformed)?;
    *rest = after;
    Ok(taken)
}

fn add(total: &mut u64, bytes: u64) -> Result<(), End> {
    *total = total.saturating_add(bytes);
    if *total > STRUCTS_MAX {
        Err(End::Oversized(Oversized::Structs))
    } else {
        Ok(())
    }
}

impl Shaped for () {
    const SHAPE: usize = 0;
}
