//! Identities of devices, and the ids that are derived from them.
//!
//! The identity depends on how the device was found:
//! - by `usb`: vendor, product and serial number; without a serial number the port.
//! - by `pci`: the address on the bus.
//! - by `cdi`: the name within its kind; if it is only a number, prefixed by the class.
//! - by a pattern of `paths`: that of the USB device to which the node belongs, with interface and subsystem;
//!   else a udev link in a `by-id` directory; else the address of the PCI device, with the beginning of the
//!   node's name; else the path.
//! - by a path without a pattern: the path.

use std::path::Path;

use sha2::{Digest as _, Sha256};
use switchyard_core::device::DEVICE_ID_MAX;

/// Bytes that an id keeps of the beginning and of the end of a long identity.
const KEPT: usize = (DEVICE_ID_MAX - HASH - 2) / 2;
/// The number of digits of a hash in an id.
const HASH: usize = 8;

/// A USB device, as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Usb {
    /// Four hexadecimal digits.
    pub(crate) vendor: String,
    /// Four hexadecimal digits.
    pub(crate) product: String,
    /// As the vendor has set it; many set none.
    pub(crate) serial: Option<String>,
    /// Bus and ports on the way to the device, such as `1-2.3`: stable as long as it stays plugged in there.
    pub(crate) port: String,
}

/// The identity of a USB device; `part` identifies a part of it.
pub(crate) fn usb(usb: &Usb, part: Option<&str>) -> String {
    let Usb {
        vendor,
        product,
        serial,
        port,
    } = usb;
    let which = serial
        .as_ref()
        .map_or_else(|| format!("usb-{port}"), |serial| serial.replace(':', "_"));
    let part = part.map(|part| format!(":{part}")).unwrap_or_default();
    format!("{vendor}:{product}:{which}{part}")
}

/// The identity of a PCI device by its address; `node` is the name of one of its nodes.
pub(crate) fn pci(address: &str, node: Option<&str>) -> String {
    let node = node
        .map(|node| node.trim_end_matches(|c: char| !c.is_ascii_alphabetic()))
        .unwrap_or_default();
    if node.is_empty() {
        address.to_owned()
    } else {
        format!("{address}-{node}")
    }
}

/// The identity of a CDI device.
pub(crate) fn cdi(kind: &str, device: &str) -> String {
    let class = kind.rsplit('/').next().unwrap_or_default();
    if is_number(device) {
        format!("{class}-{device}")
    } else {
        device.to_owned()
    }
}

/// Returns whether a name is only a number, such as `0`, or `0:1` for a part.
pub(crate) fn is_number(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b':')
}

/// The identity by a path, relative to the device root.
pub(crate) fn path(path: &Path, dev: &Path) -> String {
    let rest = path
        .strip_prefix(dev)
        .or_else(|_| path.strip_prefix("/"))
        .unwrap_or(path);
    rest.display().to_string()
}

/// The id of an identity: with the characters that ids may have, a letter or digit at both ends, and without
/// `::`, which separates the number of a slot. If the identity is too long, or has none of these characters,
/// the id contains a hash.
pub(crate) fn id(known_by: &str) -> String {
    let mut id = String::with_capacity(known_by.len());
    for c in known_by.chars() {
        let kept = c.is_ascii_alphanumeric()
            || matches!(c, '.' | '_' | '-')
            || (c == ':' && !id.ends_with(':'));
        id.push(if kept { c } else { '_' });
    }
    let id = id.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    match id.len() {
        0 => format!("device-{}", hash(known_by)),
        1..=DEVICE_ID_MAX => id.to_owned(),
        len => format!("{}-{}-{}", &id[..KEPT], hash(known_by), &id[len - KEPT..]),
    }
}

/// An id with a hash of `by`, which distinguishes it from equal ones.
pub(crate) fn distinct_id(id: &str, by: &str) -> String {
    let kept = &id[..id.len().min(DEVICE_ID_MAX - HASH - 1)];
    format!("{kept}-{}", hash(by))
}

/// A short hash that must stay the same in all versions.
fn hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest
        .iter()
        .take(HASH / 2)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Returns whether a text is a valid device id.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn is_id(id: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    (1..=DEVICE_ID_MAX).contains(&id.len())
        && id.bytes().all(inner)
        && id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.ends_with(|c: char| c.is_ascii_alphanumeric())
        && switchyard_core::id::device_of(id) == id
        && switchyard_core::id::device_of(&format!("{id}::7")) == id
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_says_what_the_device_is_known_by() {
        let mut known = Usb {
            vendor: "1a86".into(),
            product: "7523".into(),
            serial: Some("A 7:1".into()),
            port: "1-2.3".into(),
        };
        let check = |known_by: String, expected: &str| assert_eq!(id(&known_by), expected);
        check(usb(&known, None), "1a86:7523:A_7_1");
        check(usb(&known, Some("1.0-tty-0")), "1a86:7523:A_7_1:1.0-tty-0");
        known.serial = None;
        check(usb(&known, None), "1a86:7523:usb-1-2.3");
        check(pci("0000:3b:00.0", None), "0000:3b:00.0");
        check(
            pci("0000:3b:00.0", Some("renderD128")),
            "0000:3b:00.0-renderD",
        );
        check(pci("0000:3b:00.0", Some("apex_0")), "0000:3b:00.0-apex");
        check(pci("0000:3b:00.0", Some("128")), "0000:3b:00.0");
        check(
            path(Path::new("/dev/snd/controlC0"), Path::new("/dev")),
            "snd_controlC0",
        );
        check(path(Path::new("/opt/x"), Path::new("/dev")), "opt_x");
        check(cdi("nvidia.com/gpu", "GPU-8a2f"), "GPU-8a2f");
        check(cdi("nvidia.com/gpu", "0:1"), "gpu-0:1");
        check("a::0".to_owned(), "a:_0");
        check(":-x-:".to_owned(), "x");
    }

    #[test]
    fn what_is_too_long_or_nothing_has_a_hash() {
        let one = id(&"a".repeat(57));
        let other = id(&"a".repeat(58));
        assert!(
            is_id(&one) && is_id(&other) && one != other,
            "{one} {other}"
        );
        assert_eq!(one.len(), DEVICE_ID_MAX);
        assert_eq!(id(&"a".repeat(56)), "a".repeat(56));
        assert!(is_id(&id("")) && is_id(&id("///")) && id("") != id("///"));
        // Ids are stored, so other versions must derive the same.
        assert_eq!(id("é"), "device-4a99557e");
    }

    proptest! {
        #[test]
        fn whatever_a_device_is_known_by_makes_an_id(known_by in "(?s).{0,200}", by in "(?s).{0,20}") {
            let id = id(&known_by);
            prop_assert!(is_id(&id), "{}", id);
            let distinct = distinct_id(&id, &by);
            prop_assert!(is_id(&distinct), "{}", distinct);
        }
    }
}
