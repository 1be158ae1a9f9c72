//! Holders of addresses, and their form in a file.

use std::fmt;

use switchyard_linux::beginning;

use super::error::AddressError;

/// The most characters of the name of a network or the id of a container.
const IDENTIFIER_MAX: usize = 128;

/// The most characters of the name of an interface, as the kernel has it.
const INTERFACE_MAX: usize = 15;

/// The most characters of a name that an error repeats.
const SHOWN_MAX: usize = 64;

/// Between the id of the container and the name of the interface.
const SEPARATOR: &str = "\r\n";

/// Holder of addresses: a container by one of its interfaces, CNI's "attachment".
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    container_id: String,
    interface: String,
}

/// Holder of an address, as its file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordedHolder {
    /// A container by one of its interfaces.
    Attachment {
        /// The id of the container.
        container_id: String,
        /// The name of the interface inside it.
        interface: String,
    },
    /// A container, as early versions of the plugin have recorded it.
    Container {
        /// The id of the container.
        container_id: String,
    },
    /// Nobody: the file has no content.
    Nobody,
    /// Not known, since the file is too long, or no regular one.
    Unreadable,
}

/// As much of a name as an error repeats.
fn shown(text: &str) -> &str {
    beginning(text, SHOWN_MAX)
}

/// Checks that a name can be that of a network or the id of a container, by the rule of CNI's specification.
pub(super) fn check_identifier(what: &'static str, name: &str) -> Result<(), AddressError> {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let is_sound = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(is_letter)
        && name.len() <= IDENTIFIER_MAX;
    check(
        is_sound,
        what,
        name,
        "it must have 1 to 128 letters, digits, `_`, `.` and `-`, and begin with a letter or a digit",
    )
}

/// Checks that a name can be that of an interface, by the rule of the kernel.
fn check_interface(name: &str) -> Result<(), AddressError> {
    let is_letter = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | ':');
    let is_sound = !name.is_empty()
        && name.len() <= INTERFACE_MAX
        && name.chars().all(is_letter)
        && !matches!(name, "." | "..");
    check(
        is_sound,
        "interface",
        name,
        "it must have 1 to 15 characters of ASCII without `/`, `:` and spaces, and be neither `.` nor `..`",
    )
}

fn check(
    is_sound: bool,
    what: &'static str,
    name: &str,
    why: &'static str,
) -> Result<(), AddressError> {
    if is_sound {
        return Ok(());
    }
    let name = shown(name).to_owned();
    Err(AddressError::Name { what, name, why })
}

// === impl Holder ===

impl Holder {
    /// The holder that is this container, by its interface of this name.
    ///
    /// # Errors
    /// [`AddressError::Name`] if CNI does not allow the id, or the kernel the name.
    pub fn new(container_id: &str, interface: &str) -> Result<Self, AddressError> {
        check_identifier("container", container_id)?;
        check_interface(interface)?;
        Ok(Self {
            container_id: container_id.to_owned(),
            interface: interface.to_owned(),
        })
    }

    /// The id of the container.
    #[must_use]
    pub fn container_id(&self) -> &str {
        &self.container_id
    }

    /// The name of the interface inside it.
    #[must_use]
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// The content of the file of an address that it has.
    pub(super) fn content(&self) -> String {
        format!("{}{SEPARATOR}{}", self.container_id, self.interface)
    }
}

// === impl RecordedHolder ===

impl RecordedHolder {
    /// Parses the content of a file. Some file systems have zeros in a file that was not written before a power cut.
    pub(super) fn parse(content: &[u8]) -> Self {
        let text = String::from_utf8_lossy(content);
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        if text.is_empty() {
            return Self::Nobody;
        }
        match text.split_once(SEPARATOR) {
            Some((container_id, interface)) => Self::Attachment {
                container_id: container_id.to_owned(),
                interface: interface.to_owned(),
            },
            None => Self::Container {
                container_id: text.to_owned(),
            },
        }
    }

    /// Returns whether a holder has the address, by its interface or as a whole container.
    #[must_use]
    pub fn belongs_to(&self, holder: &Holder) -> bool {
        self.is_attachment(holder) || self.is_whole_container(holder)
    }

    /// Returns whether it is this holder by its interface.
    pub(super) fn is_attachment(&self, holder: &Holder) -> bool {
        match self {
            Self::Attachment {
                container_id,
                interface,
            } => *container_id == holder.container_id && *interface == holder.interface,
            Self::Container { .. } | Self::Nobody | Self::Unreadable => false,
        }
    }

    /// Returns whether it is the container of this holder, without an interface.
    pub(super) fn is_whole_container(&self, holder: &Holder) -> bool {
        matches!(self, Self::Container { container_id } if *container_id == holder.container_id)
    }
}

impl fmt::Display for RecordedHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Quoted: another program has written it.
            Self::Attachment {
                container_id,
                interface,
            } => write!(
                f,
                "container {:?} ({:?})",
                shown(container_id),
                shown(interface)
            ),
            Self::Container { container_id } => write!(f, "container {:?}", shown(container_id)),
            Self::Nobody => f.write_str("nobody"),
            Self::Unreadable => f.write_str("somebody whom its file does not tell"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_follow_the_rules_of_cni_and_of_the_kernel() {
        let longest = "a".repeat(IDENTIFIER_MAX);
        let too_long = "a".repeat(IDENTIFIER_MAX + 1);
        for (container_id, interface, wrong) in [
            ("c0ffee", "eth0", None),
            ("0_a.b-c", "a-b.c@1", None),
            (longest.as_str(), "abcdefghijklmno", None),
            (too_long.as_str(), "eth0", Some("container")),
            ("", "eth0", Some("container")),
            ("..", "eth0", Some("container")),
            ("-a", "eth0", Some("container")),
            ("a/b", "eth0", Some("container")),
            ("a\r\nb", "eth0", Some("container")),
            ("a ", "eth0", Some("container")),
            ("ä", "eth0", Some("container")),
            ("a", "", Some("interface")),
            ("a", ".", Some("interface")),
            ("a", "..", Some("interface")),
            ("a", "eth0:1", Some("interface")),
            ("a", "eth/0", Some("interface")),
            ("a", "eth 0", Some("interface")),
            ("a", "abcdefghijklmnop", Some("interface")),
        ] {
            let found = Holder::new(container_id, interface).map_err(|error| error.to_string());
            assert_eq!(found.is_ok(), wrong.is_none(), "{found:?}");
            if let (Err(error), Some(what)) = (found, wrong) {
                assert!(error.starts_with(&format!("{what} \"")), "{error}");
                assert!(error.len() < 250, "{error}");
            }
        }
    }

    #[test]
    fn a_file_tells_its_holder_as_the_plugin_reads_it() {
        let attachment = |container_id: &str, interface: &str| RecordedHolder::Attachment {
            container_id: container_id.to_owned(),
            interface: interface.to_owned(),
        };
        let container = |container_id: &str| RecordedHolder::Container {
            container_id: container_id.to_owned(),
        };
        for (content, expected) in [
            ("c1\r\neth0", attachment("c1", "eth0")),
            (" c1\r\neth0\n", attachment("c1", "eth0")),
            ("c1\r\neth0\r\nmore", attachment("c1", "eth0\r\nmore")),
            ("c1", container("c1")),
            ("c1\n", container("c1")),
            ("c1\neth0", container("c1\neth0")),
            ("", RecordedHolder::Nobody),
            ("\r\n", RecordedHolder::Nobody),
            ("\0\0\0\0", RecordedHolder::Nobody),
        ] {
            assert_eq!(RecordedHolder::parse(content.as_bytes()), expected);
        }
        let holder = Holder::new("c1", "eth0").unwrap();
        for (recorded, is_his) in [
            (attachment("c1", "eth0"), true),
            (container("c1"), true),
            (attachment("c1", "eth1"), false),
            (attachment("c2", "eth0"), false),
            (container("c2"), false),
            (RecordedHolder::Nobody, false),
            (RecordedHolder::Unreadable, false),
        ] {
            assert_eq!(recorded.belongs_to(&holder), is_his, "{recorded}");
        }
    }

    proptest! {
        #[test]
        fn holder_that_is_written_is_read_again(container in "[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}", interface in "[a-z0-9]{1,15}") {
            let holder = Holder::new(&container, &interface).unwrap();
            let recorded = RecordedHolder::parse(holder.content().as_bytes());
            prop_assert!(recorded.is_attachment(&holder) && !recorded.is_whole_container(&holder));
        }

        #[test]
        fn any_content_is_read_and_shown_within_bounds(content in proptest::collection::vec(any::<u8>(), 0..4096)) {
            // A character is shown as up to ten, such as \u{10ffff}.
            prop_assert!(RecordedHolder::parse(&content).to_string().len() < 2 * 10 * SHOWN_MAX + 32);
        }
    }
}
