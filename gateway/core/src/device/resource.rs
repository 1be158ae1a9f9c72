//! Names of extended resources, as kubelets accept them from a device plugin, and of kinds without a prefix.

/// The longest name part, in bytes.
const NAME_MAX: usize = 63;
/// The longest prefix, in bytes: a DNS name, before which kubelets write `requests.`.
const PREFIX_MAX: usize = 253 - "requests.".len();

/// Checks that a kubelet would register a device plugin for this resource. See `IsExtendedResourceName` in
/// the kubelet.
///
/// # Errors
/// The reason why it would not.
pub fn check(resource: &str) -> Result<(), &'static str> {
    let (prefix, name) = resource.split_once('/').ok_or("it has no slash")?;
    if prefix.ends_with("kubernetes.io") {
        return Err("it must not have a prefix of kubernetes.io");
    }
    if prefix.starts_with("requests.") {
        return Err("it must not begin with requests.");
    }
    if prefix.len() > PREFIX_MAX || !prefix.split('.').all(is_label) {
        return Err(
            "before the slash it has no DNS name of at most 244 lower case letters, digits, `-` and `.`",
        );
    }
    if name.len() > NAME_MAX || !is_name(name) {
        return Err(
            "after the slash it has no name of at most 63 letters, digits, `-`, `_` and `.`",
        );
    }
    Ok(())
}

/// Checks that a text can be a kind of devices without a prefix, such as `NVIDIA-GPU`: no resource and no full name of a
/// group is one, as they have slashes.
///
/// # Errors
/// The reason why it cannot.
pub fn check_plain_kind(kind: &str) -> Result<(), &'static str> {
    if kind.len() > NAME_MAX || !is_name(kind) {
        return Err(
            "it is no name of at most 63 letters, digits, `-`, `_` and `.` that begins and ends with a letter or digit",
        );
    }
    Ok(())
}

/// A label of a DNS name, as in RFC 1123.
fn is_label(label: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    label.len() <= 63 && !label.is_empty() && label.bytes().all(inner) && has_ends(label)
}

fn is_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.is_empty() && name.bytes().all(inner) && has_ends(name)
}

/// Returns whether a text begins and ends with a letter or digit.
fn has_ends(text: &str) -> bool {
    let end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    end(text.bytes().next()) && end(text.bytes().next_back())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_kinds_are_names_without_a_slash() {
        for kind in ["gpu", "NVIDIA-GPU", "A100_80.GB", "7", &"x".repeat(63)] {
            assert_eq!(check_plain_kind(kind), Ok(()), "{kind}");
        }
        for kind in [
            "",
            "nvidia.com/gpu",
            "gpu=1",
            "a,b",
            "-gpu",
            "gpu-",
            "g pu",
            "gpü",
            "g%70u",
            &"x".repeat(64),
        ] {
            assert!(check_plain_kind(kind).is_err(), "{kind}");
        }
    }

    #[test]
    fn names_are_those_that_kubelets_take() {
        let long = format!("a.io/{}", "x".repeat(63));
        for resource in [
            "acme.com/tpu",
            "squat.ai/serial",
            "nvidia.com/GPU_2",
            "a/b",
            &long,
        ] {
            assert_eq!(check(resource), Ok(()), "{resource}");
        }
        let name = format!("a.io/{}", "x".repeat(64));
        let prefix = format!("{}a/x", "a.".repeat(122));
        for resource in [
            "",
            "tpu",
            "/tpu",
            "acme.com/",
            "acme.com/a/b",
            "kubernetes.io/tpu",
            "foo.kubernetes.io/x",
            "requests.acme.com/tpu",
            "Acme.com/tpu",
            "acme..com/tpu",
            "acme.com-/tpu",
            "acme.com/-tpu",
            "acme.com/tpu_",
            "acme.com/t u",
            "acme.com/tpü",
            &name,
            &prefix,
        ] {
            assert!(check(resource).is_err(), "{resource}");
        }
    }
}
