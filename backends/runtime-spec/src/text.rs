//! Checks texts and paths that become part of a spec, which is JSON and is read by programs written in C.

use std::path::{Component, Path, PathBuf};

use switchyard_core::{Error, Result};

/// Returns `text` if it contains no NUL, at which the kernel would cut it off.
///
/// # Errors
/// `InvalidArgument`, naming `field`.
pub fn without_nul<'a>(field: &str, text: &'a str) -> Result<&'a str> {
    if text.contains('\0') {
        return Err(Error::invalid(field, "contains a NUL byte"));
    }
    Ok(text)
}

/// The path as text: a spec is JSON and can only contain UTF-8.
///
/// # Errors
/// `InvalidArgument`, naming `field`.
pub fn utf8<'a>(field: &str, path: &'a Path) -> Result<&'a str> {
    let text = path.to_str().ok_or_else(|| {
        Error::invalid(
            field,
            format!("{path:?} is not UTF-8, which a runtime spec needs"),
        )
    })?;
    without_nul(field, text)
}

/// The longest accepted path, in bytes: the kernel's limit, less room for names below it.
const MAX_PATH: usize = 3800;

/// The longest name of a file, in bytes.
const MAX_NAME: usize = 255;

/// An absolute path without `.`, doubled or trailing slashes.
///
/// # Errors
/// `InvalidArgument`, naming `field`, for a path that is relative, too long, not UTF-8 or contains `..`.
pub fn absolute(field: &str, path: &Path) -> Result<String> {
    let text = utf8(field, path)?;
    if !path.is_absolute() {
        return Err(Error::invalid(
            field,
            format!("{text:?} is not an absolute path"),
        ));
    }
    let mut clean = PathBuf::from("/");
    if text.len() > MAX_PATH {
        return Err(Error::invalid(
            field,
            format!("it is longer than {MAX_PATH} bytes, which the kernel does not take"),
        ));
    }
    for part in path.components() {
        match part {
            Component::Normal(name) if name.len() > MAX_NAME => {
                return Err(Error::invalid(
                    field,
                    format!("a name in it is longer than {MAX_NAME} bytes"),
                ));
            }
            Component::Normal(name) => clean.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            Component::ParentDir => {
                return Err(Error::invalid(field, format!("{text:?} goes up by `..`")));
            }
        }
    }
    utf8(field, &clean).map(str::to_owned)
}

/// The number of components of a clean absolute path; 0 for the root.
#[must_use]
pub fn depth(path: &str) -> usize {
    path.split('/').filter(|part| !part.is_empty()).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn absolute_path_is_cleaned_and_never_escapes() {
        assert_eq!(absolute("f", Path::new("//a/./b//c/")).unwrap(), "/a/b/c");
        assert_eq!(absolute("f", Path::new("/")).unwrap(), "/");
        assert!(
            absolute("f", Path::new("a"))
                .unwrap_err()
                .to_string()
                .starts_with("f: ")
        );
        assert!(absolute("f", Path::new("/a/../b")).is_err());
        assert!(absolute("f", Path::new("/a\0b")).is_err());
    }

    proptest! {
        #[test]
        fn path_cleaning_is_idempotent(text in "/[a-z./]{0,24}") {
            if let Ok(clean) = absolute("f", Path::new(&text)) {
                prop_assert_eq!(absolute("f", Path::new(&clean)).unwrap(), clean.clone());
                prop_assert!(!clean.split('/').any(|part| part == ".."));
            }
        }
    }
}
