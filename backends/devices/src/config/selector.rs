//! Selects USB and PCI devices by their ids.

use serde::Deserialize;
use switchyard_core::{Error, Result};

use super::check::is_hex;

/// USB devices by their ids.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UsbMatch {
    /// The vendor id, four hexadecimal digits.
    pub vendor: String,
    /// The product id, four hexadecimal digits; empty for any.
    #[serde(default)]
    pub product: String,
    /// The serial number; empty for any.
    #[serde(default)]
    pub serial: String,
}

/// PCI devices by their ids.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PciMatch {
    /// The vendor id, four hexadecimal digits; empty for any.
    #[serde(default)]
    pub vendor: String,
    /// The device id, four hexadecimal digits; empty for any.
    #[serde(default)]
    pub device: String,
    /// The first two, four or six digits of the class, such as `03` for displays; empty for any.
    #[serde(default)]
    pub class: String,
}

// === impl UsbMatch ===

impl UsbMatch {
    /// Returns whether a device with these ids matches.
    pub(crate) fn matches(&self, vendor: &str, product: &str, serial: Option<&str>) -> bool {
        let any_serial = self.serial.is_empty() || serial == Some(&self.serial);
        same(&self.vendor, vendor) && same(&self.product, product) && any_serial
    }

    pub(super) fn check(&self) -> Result<()> {
        if is_hex(&self.vendor, 4) && (self.product.is_empty() || is_hex(&self.product, 4)) {
            return Ok(());
        }
        let why = format!(
            "{:?}, {:?} are not four hexadecimal digits each",
            self.vendor, self.product
        );
        Err(Error::invalid("usb", why))
    }
}

// === impl PciMatch ===

impl PciMatch {
    /// Returns whether a device with these ids matches; `class` has six digits.
    pub(crate) fn matches(&self, vendor: &str, device: &str, class: &str) -> bool {
        let of_class = class
            .get(..self.class.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(&self.class));
        same(&self.vendor, vendor) && same(&self.device, device) && of_class
    }

    pub(super) fn check(&self) -> Result<()> {
        let Self {
            vendor,
            device,
            class,
        } = self;
        if vendor.is_empty() && class.is_empty() {
            return Err(Error::invalid("pci", "neither vendor nor class is there"));
        }
        let is_number = |text: &String| text.is_empty() || is_hex(text, 4);
        if is_number(vendor)
            && is_number(device)
            && [0, 2, 4, 6].iter().any(|digits| is_hex(class, *digits))
        {
            return Ok(());
        }
        let why = format!(
            "{vendor:?}, {device:?}, {class:?} are not four, four and two, four or six hexadecimal digits"
        );
        Err(Error::invalid("pci", why))
    }
}

fn same(wanted: &str, found: &str) -> bool {
    wanted.is_empty() || wanted.eq_ignore_ascii_case(found)
}
