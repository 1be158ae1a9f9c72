//! Platforms (`os/architecture/variant`) and which of them this machine can run, best first.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::shown;
use crate::json::null_is_empty;

/// A platform as an image index and an image's configuration name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Platform {
    /// `linux` for everything this gateway runs.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub os: String,
    /// Go's name: `amd64`, `arm64`, ….
    #[serde(default, deserialize_with = "null_is_empty")]
    pub architecture: String,
    /// A level of the architecture: `v7` for arm, `v3` for amd64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// The platforms that are acceptable, best first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platforms(Vec<Platform>);

// === impl Platform ===

impl Platform {
    /// A Linux platform.
    #[must_use]
    pub fn linux(architecture: &str, variant: Option<&str>) -> Self {
        Self {
            os: "linux".to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.map(ToOwned::to_owned),
        }
    }

    /// The same platform in the one spelling that is compared: lower case, Go's names, no redundant variant. Without
    /// a system it is one of this machine's, as for containerd.
    #[must_use]
    pub fn normalized(&self) -> Self {
        let variant = self
            .variant
            .as_deref()
            .unwrap_or_default()
            .to_ascii_lowercase();
        let architecture = self.architecture.to_ascii_lowercase();
        let (architecture, variant) = match (architecture.as_str(), variant.as_str()) {
            ("x86_64" | "x86-64" | "amd64", "v1") => ("amd64", ""),
            ("x86_64" | "x86-64" | "amd64", variant) => ("amd64", variant),
            ("i386" | "i686" | "386", _) => ("386", ""),
            ("aarch64" | "arm64", "8" | "v8") => ("arm64", ""),
            ("aarch64" | "arm64", variant) => ("arm64", variant),
            ("armhf", _) => ("arm", "v7"),
            ("armel", _) => ("arm", "v6"),
            ("arm", "" | "7") => ("arm", "v7"),
            ("arm", "8") => ("arm", "v8"),
            ("arm", "6") => ("arm", "v6"),
            ("arm", "5") => ("arm", "v5"),
            (other, variant) => (other, variant),
        };
        let os = match self.os.as_str() {
            "" => "linux".to_owned(),
            os => os.to_ascii_lowercase(),
        };
        Self {
            os,
            architecture: architecture.to_owned(),
            variant: Some(variant.to_owned()).filter(|variant| !variant.is_empty()),
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The image's own texts, which are not trusted.
        write!(f, "{}/{}", shown(&self.os), shown(&self.architecture))?;
        match &self.variant {
            Some(variant) => write!(f, "/{}", shown(variant)),
            None => Ok(()),
        }
    }
}

// === impl Platforms ===

impl Platforms {
    /// The platforms of this machine, in containerd's order: its own architecture at the highest level that
    /// the processor has, then the lower levels, then the 32-bit architecture it can also execute.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let list = match std::env::consts::ARCH {
            "x86_64" => {
                let mut list: Vec<_> = (2..=amd64_level())
                    .rev()
                    .map(|level| Platform::linux("amd64", Some(&format!("v{level}"))))
                    .collect();
                list.push(Platform::linux("amd64", None));
                list.push(Platform::linux("386", None));
                list
            }
            "aarch64" => {
                let mut list = vec![Platform::linux("arm64", None)];
                list.extend(
                    ["v8", "v7", "v6", "v5"].map(|variant| Platform::linux("arm", Some(variant))),
                );
                list
            }
            "arm" => ["v7", "v6", "v5"]
                .map(|variant| Platform::linux("arm", Some(variant)))
                .into(),
            "x86" => vec![Platform::linux("386", None)],
            "powerpc64" if cfg!(target_endian = "little") => vec![Platform::linux("ppc64le", None)],
            "powerpc64" => vec![Platform::linux("ppc64", None)],
            "loongarch64" => vec![Platform::linux("loong64", None)],
            // Go and Rust agree on the rest: riscv64, s390x, ….
            other => vec![Platform::linux(other, None)],
        };
        Self(list)
    }

    /// Exactly one platform.
    #[must_use]
    pub fn only(platform: &Platform) -> Self {
        Self(vec![platform.normalized()])
    }

    /// The rank of a platform for this machine: 0 is the best, `None` means that it cannot be used.
    #[must_use]
    pub fn rank(&self, platform: &Platform) -> Option<usize> {
        let platform = platform.normalized();
        self.0.iter().position(|accepted| *accepted == platform)
    }

    /// Returns whether an image can run here whose configuration names this platform. What it leaves out, nobody
    /// knows, and is taken to be right.
    #[must_use]
    pub fn accept(&self, platform: &Platform) -> bool {
        if platform.architecture.is_empty() {
            let os = platform.normalized().os;
            return self.0.iter().any(|accepted| accepted.os == os);
        }
        self.rank(platform).is_some()
    }
}

impl fmt::Display for Platforms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&list.join(" or "))
    }
}

/// The x86-64 psABI level of this processor.
#[cfg(target_arch = "x86_64")]
fn amd64_level() -> u8 {
    use std::arch::is_x86_feature_detected as has;
    let second = has!("sse3")
        && has!("ssse3")
        && has!("sse4.1")
        && has!("sse4.2")
        && has!("popcnt")
        && has!("cmpxchg16b");
    let third = second
        && has!("avx")
        && has!("avx2")
        && has!("bmi1")
        && has!("bmi2")
        && has!("f16c")
        && has!("fma")
        && has!("lzcnt")
        && has!("movbe");
    match (second, third) {
        (_, true) => 3,
        (true, false) => 2,
        (false, false) => 1,
    }
}

/// Elsewhere the level has no meaning.
#[cfg(not(target_arch = "x86_64"))]
fn amd64_level() -> u8 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_platform_are_equal() {
        let check = |architecture, variant, expected: &str| {
            assert_eq!(
                Platform::linux(architecture, variant)
                    .normalized()
                    .to_string(),
                expected
            );
        };
        check("x86_64", None, "linux/amd64");
        check("amd64", Some("v1"), "linux/amd64");
        check("aarch64", None, "linux/arm64");
        check("arm64", Some("v8"), "linux/arm64");
        check("arm", None, "linux/arm/v7");
        check("armhf", None, "linux/arm/v7");
        check("riscv64", None, "linux/riscv64");
    }

    #[test]
    fn what_a_configuration_leaves_out_is_taken_to_be_right() {
        let here = Platforms::only(&Platform::linux("arm64", None));
        for (document, expected) in [
            (r#"{"os":"linux","architecture":"arm64"}"#, true),
            (r#"{"os":"linux","architecture":"amd64"}"#, false),
            (r#"{"architecture":"arm64"}"#, true),
            (r#"{"architecture":"amd64"}"#, false),
            (r#"{"os":"linux"}"#, true),
            (r#"{"os":"windows"}"#, false),
            (r#"{"os":"","architecture":""}"#, true),
            (r#"{"os":null,"architecture":null,"variant":null}"#, true),
            (
                r#"{"os":null,"architecture":"aarch64","variant":"v8"}"#,
                true,
            ),
            ("{}", true),
        ] {
            let platform: Platform = serde_json::from_str(document).unwrap();
            assert_eq!(here.accept(&platform), expected, "{document}");
        }
    }

    #[test]
    fn this_machine_runs_its_own_architecture_only() {
        let here = Platforms::of_this_machine();
        let (own, other) = if cfg!(target_arch = "x86_64") {
            ("amd64", "arm64")
        } else {
            ("arm64", "amd64")
        };
        if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
            assert!(here.rank(&Platform::linux(own, None)).is_some());
            assert_eq!(here.rank(&Platform::linux(other, None)), None);
        }
        let windows = Platform {
            os: "windows".into(),
            ..Platform::linux(own, None)
        };
        assert_eq!(here.rank(&windows), None);
    }
}
