//! The id of a slot of a device.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

/// The longest slot id, in bytes: that of the longest path, which is an id of earlier versions, with the number of a
/// slot.
pub const SLOT_ID_MAX: usize = 4095 + SEPARATOR.len() + 5;

/// Characters that are shown of a text that is not a slot id.
const SHOWN: usize = 64;

/// The separator between the id of a device and the number of one of its slots.
const SEPARATOR: &str = "::";

/// The id of a slot: the share of a device that is allocated as a unit.
///
/// ```text
/// slot   := device                 a device that is not shared is one slot
///         | device "::" number     number: 0 to 65535, without leading zeros
/// ```
///
/// The devices of an inventory have short ids without `::` ([`Device::id`](crate::device::Device::id)). Records and
/// orchestrators may also have ids of earlier versions, which are paths and CDI names. So the only bound on the text of
/// a `SlotId` is its length, 1 to [`SLOT_ID_MAX`] bytes. The ledger decides whether the node has the slot.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(String);

/// A text that is not the id of a slot, of this version or of an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSlotId {
    /// It is empty.
    #[error("the id of a device is empty")]
    Empty,
    /// It is longer than [`SLOT_ID_MAX`].
    #[error("the id {beginning:?}… of a device has {length} bytes, and may have {SLOT_ID_MAX}")]
    TooLong {
        /// Its first characters.
        beginning: String,
        /// Its length in bytes.
        length: usize,
    },
}

// === impl SlotId ===

impl SlotId {
    /// Checks the text of an id.
    ///
    /// # Errors
    /// If it is empty or longer than [`SLOT_ID_MAX`].
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidSlotId> {
        let text = text.into();
        match text.len() {
            0 => Err(InvalidSlotId::Empty),
            1..=SLOT_ID_MAX => Ok(Self(text)),
            length => Err(InvalidSlotId::TooLong {
                beginning: text.chars().take(SHOWN).collect(),
                length,
            }),
        }
    }

    /// The only slot of a device that is not shared.
    #[must_use]
    pub(crate) fn of_whole(device: &str) -> Self {
        debug_assert!(
            (1..=SLOT_ID_MAX).contains(&device.len()),
            "{device:?} is not the id of a device"
        );
        Self(device.to_owned())
    }

    /// A slot of a shared device.
    #[must_use]
    pub(crate) fn of_share(device: &str, number: u16) -> Self {
        Self::of_whole(&format!("{device}{SEPARATOR}{number}"))
    }

    /// The id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id of the device.
    #[must_use]
    pub fn device(&self) -> &str {
        device_of(&self.0)
    }

    /// The number of the slot on its device; `None` for the only slot of a device, and for a number that no slot has.
    #[must_use]
    pub fn number(&self) -> Option<u16> {
        let number = self
            .0
            .strip_prefix(self.device())?
            .strip_prefix(SEPARATOR)?;
        if number != "0" && number.starts_with('0') {
            None
        } else {
            number.parse().ok()
        }
    }
}

impl FromStr for SlotId {
    type Err = InvalidSlotId;

    fn from_str(text: &str) -> Result<Self, InvalidSlotId> {
        Self::new(text)
    }
}

impl From<SlotId> for String {
    fn from(slot: SlotId) -> Self {
        slot.0
    }
}

impl Borrow<str> for SlotId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for SlotId {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for SlotId {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// As the text in quotes: messages to clients list slots so.
impl fmt::Debug for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The id of the device in the text of a slot id: all before `::` and digits at the end. For lists that keep the texts of
/// many ids; elsewhere [`SlotId::device`].
#[must_use]
pub fn device_of(slot: &str) -> &str {
    match slot.rsplit_once(SEPARATOR) {
        Some((device, number))
            if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            device
        }
        Some(_) | None => slot,
    }
}

// === impl InvalidSlotId ===

impl InvalidSlotId {
    /// The beginning of the text.
    #[must_use]
    pub fn beginning(&self) -> &str {
        match self {
            Self::Empty => "",
            Self::TooLong {
                beginning,
                length: _,
            } => beginning,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_of_all_versions_are_accepted_and_bounded() {
        for text in [
            "acme-0",
            "acme-0::1",
            "/dev/ttyUSB0",
            "/dev/a b\n",
            "acme.com/tpu=0",
            "::",
            "::1",
        ] {
            assert_eq!(SlotId::new(text).unwrap().as_str(), text);
        }
        assert_eq!(SlotId::new(""), Err(InvalidSlotId::Empty));
        let long = "x".repeat(SLOT_ID_MAX);
        assert_eq!(SlotId::new(long.as_str()).unwrap().as_str(), long);
        let error = SlotId::new("ü".repeat(SLOT_ID_MAX)).unwrap_err();
        assert_eq!(error.beginning(), "ü".repeat(SHOWN));
        assert_eq!(
            error,
            InvalidSlotId::TooLong {
                beginning: "ü".repeat(SHOWN),
                length: 2 * SLOT_ID_MAX
            }
        );
    }

    #[test]
    fn an_id_is_split_at_its_last_number() {
        let check = |text: &str, device: &str, number: Option<u16>| {
            let slot = SlotId::new(text).unwrap();
            assert_eq!((slot.device(), slot.number()), (device, number), "{text}");
        };
        check("a", "a", None);
        check("a::0", "a", Some(0));
        check("a::65535", "a", Some(u16::MAX));
        check("a::1::2", "a::1", Some(2));
        check("0000:3b:00.0", "0000:3b:00.0", None);
        // No slot has these numbers, and a lease with such an id is one of the device.
        check("a::65536", "a", None);
        check("a::00", "a", None);
        check("a::01", "a", None);
        for whole in ["a::", "a::x", "a::-1", "a::+1", "a:0"] {
            check(whole, whole, None);
        }
    }

    #[test]
    fn messages_show_ids_as_texts() {
        let slots = ["a::0", "/dev/b"].map(|text| SlotId::new(text).unwrap());
        assert_eq!(
            format!("{slots:?} {}", slots[0]),
            r#"["a::0", "/dev/b"] a::0"#
        );
    }

    proptest! {
        #[test]
        fn a_composed_id_has_its_parts(device in "[a-z0-9]([a-z0-9._-]|:[a-z0-9]){0,20}", number: u16) {
            let slot = SlotId::of_share(&device, number);
            prop_assert_eq!((slot.device(), slot.number()), (device.as_str(), Some(number)));
            prop_assert_eq!(slot.as_str().parse::<SlotId>(), Ok(slot.clone()));
            let whole = SlotId::of_whole(&device);
            prop_assert_eq!((whole.device(), whole.number()), (device.as_str(), None));
        }

        #[test]
        fn any_accepted_text_is_kept_and_ordered_as_text(texts in prop::array::uniform2("\\PC{1,40}(::[0-9]{0,6})?")) {
            let slots = texts.clone().map(|text| SlotId::new(text).unwrap());
            prop_assert_eq!(slots[0].cmp(&slots[1]), texts[0].cmp(&texts[1]));
            for (slot, text) in slots.iter().zip(&texts) {
                prop_assert_eq!(slot.as_str(), text);
                prop_assert!(text.starts_with(slot.device()));
            }
        }
    }
}
