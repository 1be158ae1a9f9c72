//! Names in the kernel's cgroups: sizes of huge pages, and files.

use std::borrow::Borrow;
use std::fmt;

use super::InvalidLimit;

/// A size of huge pages as the kernel names it: `64KB`, `2MB`, `1GB`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HugepageSize(String);

/// The name of a file of a cgroup, such as `memory.high`. It leads to no other directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CgroupFile(String);

// === impl HugepageSize ===

impl HugepageSize {
    /// A positive number of at most 32 bits, and its unit.
    ///
    /// # Errors
    /// If it is not of that form.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidLimit> {
        let text = text.into();
        let number = ["KB", "MB", "GB"]
            .iter()
            .find_map(|unit| text.strip_suffix(unit));
        let is_size = number.is_some_and(|number| {
            number.bytes().all(|byte| byte.is_ascii_digit())
                && number.parse::<u32>().is_ok_and(|number| number > 0)
        });
        if is_size {
            Ok(Self(text))
        } else {
            Err(InvalidLimit::new(format!(
                "{text:?} is not a size such as \"2MB\""
            )))
        }
    }

    /// The size.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HugepageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl CgroupFile ===

impl CgroupFile {
    /// A controller or `cgroup`, a dot, and the rest of the name.
    ///
    /// # Errors
    /// If it has no dot, begins with one, or has a slash or NUL.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidLimit> {
        let name = name.into();
        if !name.contains('.') || name.contains(['/', '\0']) || name.starts_with('.') {
            let why = "it is not the name of a cgroup file, such as \"memory.high\"";
            return Err(InvalidLimit::new(why.to_owned()));
        }
        Ok(Self(name))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for CgroupFile {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CgroupFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_positive_numbers_with_a_unit() {
        for size in ["64KB", "2MB", "1GB", "4294967295KB"] {
            assert_eq!(HugepageSize::new(size).unwrap().as_str(), size);
        }
        for wrong in [
            "",
            "MB",
            "0MB",
            "2mb",
            "2 MB",
            "+2MB",
            "-2MB",
            "2",
            "2TB",
            "2MB/",
            "4294967296KB",
            "0x2MB",
        ] {
            assert!(HugepageSize::new(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_of_files_stay_in_their_directory() {
        for name in ["memory.high", "cgroup.freeze", "io.max", "a.b.c"] {
            assert_eq!(CgroupFile::new(name).unwrap().as_str(), name);
        }
        for wrong in [
            "",
            "memory",
            ".",
            "..",
            ".hidden",
            "../memory.high",
            "memory.high/",
            "a.\0b",
        ] {
            assert!(CgroupFile::new(wrong).is_err(), "{wrong}");
        }
    }
}
