//! The name of this gateway among those that may share a containerd.
//!
//! It is a label of all its objects, so a gateway that loses its name does not recognise them any more, and orchestrators would start
//! them again beside those that run. So a new name is not in force before recovery has seen that no object was made
//! with our directories under another one.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use switchyard_core::{Error, Result};
use switchyard_linux::files::if_present;

use crate::base::fs::{io_error, write_durable};
use crate::base::random::fill_random;

/// The file with the name, in the state directory.
const FILE: &str = "instance";

/// The longest name, in bytes: it is part of names that containerd limits.
const LEN_MAX: usize = 32;

/// Maximum number of bytes of the file that are read: more than a name and the text around it.
const READ_MAX: u64 = 1024;

/// The name of this gateway.
#[derive(Debug)]
pub(crate) struct Instance {
    file: PathBuf,
    /// The name that it gets if it has none.
    new: String,
    settled: OnceLock<String>,
}

impl Instance {
    /// The name in the state directory, if there is one. Blocks.
    ///
    /// # Errors
    /// `Internal` if the file cannot be read.
    pub(crate) fn load(state: &Path) -> Result<Self> {
        let mut random = [0; 6];
        fill_random(&mut random);
        let instance = Self {
            file: state.join(FILE),
            new: hex::encode(random),
            settled: OnceLock::new(),
        };
        instance.reload()?;
        Ok(instance)
    }

    /// One with a name that is in no file.
    #[cfg(test)]
    pub(crate) fn named(name: &str) -> Self {
        let settled = OnceLock::from(name.to_owned());
        Self {
            file: PathBuf::new(),
            new: name.to_owned(),
            settled,
        }
    }

    /// The name: the settled one, or the new one that it may get.
    pub(crate) fn name(&self) -> &str {
        self.settled.get().unwrap_or(&self.new)
    }

    /// Returns whether its name is final.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled.get().is_some()
    }

    /// Takes the name that has been written since, as by [`recover_as`]; returns whether it has its name for good. Blocks.
    ///
    /// # Errors
    /// `Internal` if the file cannot be read.
    pub(crate) fn reload(&self) -> Result<bool> {
        if let Some(name) = stored(&self.file)? {
            // Not set before, or to the same: the file does not change once it has a name.
            let _ = self.settled.set(name);
        }
        Ok(self.is_settled())
    }

    /// Gives it the new name, for good. Idempotent. Blocks.
    ///
    /// # Errors
    /// `ResourceExhausted` or `Internal` if the name cannot be stored.
    pub(crate) fn settle(&self) -> Result<()> {
        if self.reload()? {
            return Ok(());
        }
        // Were it lost in a power cut, the next start would not recognise the objects that are made from now on.
        write_durable(&self.file, self.new.as_bytes(), 0o600)?;
        self.reload().map(drop)
    }
}

/// Gives the gateway with this state directory a name that it had before it lost it. A daemon that runs takes it soon. Blocks.
///
/// # Errors
/// `InvalidArgument` for what is no name; `FailedPrecondition` if the gateway has another name; `Internal` or `ResourceExhausted` if it
/// cannot be stored.
pub fn recover_as(state: &Path, name: &str) -> Result<()> {
    if !is_name(name) {
        let why = format!(
            "{name:?} is no name of a gateway, of at most {LEN_MAX} letters, digits, `-` and `_`"
        );
        return Err(Error::invalid("instance", why));
    }
    let file = state.join(FILE);
    match stored(&file)? {
        None => write_durable(&file, name.as_bytes(), 0o600),
        Some(present) if present == name => Ok(()),
        Some(present) => Err(Error::failed_precondition(format!(
            "this gateway is called {present} already, by {}: its own containers have that name, and would be lost with another",
            file.display()
        ))),
    }
}

fn is_name(text: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    !text.is_empty() && text.len() <= LEN_MAX && text.chars().all(is_valid)
}

/// The name in a file; `None` if there is no file, or no name in it: a power cut or an operator may have emptied or damaged it.
fn stored(file: &Path) -> Result<Option<String>> {
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|file| file.take(READ_MAX).read_to_end(&mut bytes));
    // Without a file there are no bytes, which are no name.
    if_present(read).map_err(|fault| io_error("read", file, fault))?;
    let name = str::from_utf8(&bytes).unwrap_or_default().trim();
    Ok(is_name(name).then(|| name.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn name_is_stored_once_it_is_settled_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let long = vec![b'y'; 5000];
        let damaged: [&[u8]; 6] = [b"", b"\n", &[0; 12], b"\xff\xfe", b"a name", &long];
        for damaged in std::iter::once(None).chain(damaged.map(Some)) {
            let _ = fs::remove_file(&file);
            damaged
                .into_iter()
                .for_each(|bytes| fs::write(&file, bytes).unwrap());
            let instance = Instance::load(dir.path()).unwrap();
            let name = instance.name().to_owned();
            assert!(
                !instance.is_settled() && !instance.reload().unwrap(),
                "{damaged:?}"
            );
            assert_eq!(fs::read(&file).ok().as_deref(), damaged);
            instance.settle().unwrap();
            assert_eq!(
                (instance.name(), instance.is_settled()),
                (name.as_str(), true)
            );
            let again = Instance::load(dir.path()).unwrap();
            assert_eq!((again.name(), again.is_settled()), (name.as_str(), true));
        }
    }

    #[test]
    fn gateway_without_a_name_takes_the_one_that_it_is_given_and_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "").unwrap();
        let instance = Instance::load(dir.path()).unwrap();
        for bad in ["", "a b", "../x", &"x".repeat(LEN_MAX + 1)] {
            assert!(recover_as(dir.path(), bad).is_err(), "{bad}");
        }
        for _ in 0..2 {
            recover_as(dir.path(), "former").unwrap();
        }
        assert!(instance.reload().unwrap());
        assert_eq!(instance.name(), "former");
        instance.settle().unwrap();
        let refused = recover_as(dir.path(), "other").unwrap_err().to_string();
        assert!(refused.contains("is called former already"), "{refused}");
        assert_eq!(Instance::load(dir.path()).unwrap().name(), "former");
    }
}
