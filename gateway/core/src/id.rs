//! Identifiers and owners.

use std::fmt;
use std::str::FromStr;

mod slot;

pub use slot::{InvalidSlotId, SLOT_ID_MAX, SlotId, device_of};

/// Number of hexadecimal digits in a sandbox or task id.
pub const ID_LEN: usize = 64;

/// Number of hexadecimal digits in the token of a lease.
pub const TOKEN_LEN: usize = 32;

/// A text that is not an id: ids are lower-case hexadecimal digits, 64 for a sandbox or task, 32 for a lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an id: expected {digits} lower-case hexadecimal digits")]
pub struct ParseIdError {
    text: String,
    digits: usize,
}

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident, $len:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; $len / 2]);

        impl $name {
            /// A fresh id from the operating system's random source.
            #[must_use]
            pub fn random() -> Self {
                let mut bytes = [0; $len / 2];
                getrandom::fill(&mut bytes).expect("the kernel's random source is always available");
                Self(bytes)
            }

            /// The id with these bytes; for tests and for derived ids.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; $len / 2]) -> Self {
                Self(bytes)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                let fail = || ParseIdError { text: text.to_owned(), digits: $len };
                if text.bytes().any(|b| b.is_ascii_uppercase()) {
                    return Err(fail());
                }
                let mut bytes = [0; $len / 2];
                hex::decode_to_slice(text, &mut bytes).map_err(|_| fail())?;
                Ok(Self(bytes))
            }
        }
    };
}

hex_id! {
    /// Identifies a sandbox on this node for its whole life.
    SandboxId, ID_LEN
}

hex_id! {
    /// Identifies a task on this node for its whole life.
    TaskId, ID_LEN
}

hex_id! {
    /// Identifies a lease of devices. Random, since a caller that knows it can create a task with the
    /// devices.
    LeaseToken, TOKEN_LEN
}

/// The orchestrator that created an object. No frontend lists or changes objects of another owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// The kubelet, or any other CRI client.
    Kubernetes,
    /// A Nomad agent.
    Nomad,
    /// A Swarm manager.
    Swarm,
    /// The node's operator.
    Host,
}

impl Owner {
    /// All owners.
    pub const ALL: [Self; 4] = [Self::Kubernetes, Self::Nomad, Self::Swarm, Self::Host];

    /// The name used in labels, metrics and messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::Nomad => "nomad",
            Self::Swarm => "swarm",
            Self::Host => "host",
        }
    }

    /// The owner with this [`Owner::as_str`] name.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|owner| owner.as_str() == word)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn id_round_trips_through_text(bytes in any::<[u8; 32]>()) {
            let id = TaskId::from_bytes(bytes);
            prop_assert_eq!(id.to_string().len(), ID_LEN);
            prop_assert_eq!(id.to_string().parse::<TaskId>(), Ok(id));
        }

        #[test]
        fn only_64_lower_case_hex_digits_are_an_id(text in "\\PC*") {
            let wanted = text.len() == ID_LEN && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            prop_assert_eq!(text.parse::<SandboxId>().is_ok(), wanted);
        }
    }

    #[test]
    fn random_ids_differ() {
        assert_ne!(TaskId::random(), TaskId::random());
    }

    #[test]
    fn every_owner_parses_from_its_name() {
        for owner in Owner::ALL {
            assert_eq!(Owner::parse(owner.as_str()), Some(owner));
        }
        assert_eq!(Owner::parse("docker"), None);
    }
}
