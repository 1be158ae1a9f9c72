//! The packages in which distributions have what a node lacks, and the command that installs them, by os-release(5): the only place that
//! knows. A text that asks for a program gets its command here.

use std::fs::File;
use std::io::Read;

/// A program or a set of programs that a node may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needed {
    /// `apparmor_parser`.
    AppArmorParser,
    /// The standard CNI plugins.
    CniPlugins,
    /// containerd, with its shim.
    Containerd,
    /// criu.
    Criu,
    /// iptables.
    Iptables,
}

/// Distributions with the same packages and the same command.
struct Family {
    /// `ID` of the distribution, or a word of the `ID_LIKE` of those that are made from it.
    ids: &'static [&'static str],
    /// The command, without the package; `None` where packages are not added to a node that runs.
    install: Option<&'static str>,
    packages: fn(Needed) -> Option<&'static str>,
}

/// Paths of the file in distributions, in the order in which os-release(5) has it read.
pub const OS_RELEASE_FILES: [&str; 2] = ["/etc/os-release", "/usr/lib/os-release"];

/// Maximum length of the file.
const FILE_MAX: u64 = 64 << 10;

/// All families. A word of a distribution is looked for in all of them before its next word, so each stands for itself.
const FAMILIES: [Family; 9] = [
    Family {
        ids: &["debian", "ubuntu"],
        install: Some("apt-get install"),
        packages: of_debian,
    },
    Family {
        // Those of Oracle name Fedora alone, but have no containerd either.
        ids: &["rhel", "centos", "ol"],
        install: Some("dnf install"),
        packages: of_rhel,
    },
    Family {
        ids: &["fedora"],
        install: Some("dnf install"),
        packages: of_fedora,
    },
    Family {
        ids: &["amzn"],
        install: Some("dnf install"),
        packages: of_amazon,
    },
    Family {
        ids: &[
            "opensuse-microos",
            "microos",
            "opensuse-leap-micro",
            "sle-micro",
            "sl-micro",
        ],
        install: Some("transactional-update pkg install"),
        packages: of_suse,
    },
    Family {
        ids: &["suse", "opensuse", "sles"],
        install: Some("zypper install"),
        packages: of_suse,
    },
    Family {
        ids: &["alpine"],
        install: Some("apk add"),
        packages: of_alpine,
    },
    Family {
        ids: &["arch"],
        install: Some("pacman -S"),
        packages: of_alpine,
    },
    Family {
        ids: &["bottlerocket", "cos", "flatcar", "nixos", "talos"],
        install: None,
        packages: |_| None,
    },
];

/// Identity of a distribution, as it says itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OsRelease {
    /// `ID`, and the words of `ID_LIKE`.
    words: Vec<String>,
    /// True if the system is an image of ostree, to which packages are added as layers.
    is_ostree: bool,
}

// === impl OsRelease ===

impl OsRelease {
    /// Reads the text of a file.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let value = |key: &str| {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='))?;
            Some(value.trim().trim_matches(['"', '\'']).to_owned())
        };
        let words = [value("ID"), value("ID_LIKE")].into_iter().flatten();
        let words = words.flat_map(|value| {
            let words: Vec<String> = value.split_whitespace().map(str::to_lowercase).collect();
            words
        });
        Self {
            words: words.collect(),
            is_ostree: value("OSTREE_VERSION").is_some()
                || value("VARIANT_ID").is_some_and(|variant| variant == "coreos"),
        }
    }

    /// That of this node; that of no known distribution if it cannot be read. Blocks.
    #[must_use]
    pub fn of_node() -> Self {
        let text = OS_RELEASE_FILES.iter().find_map(|file| {
            let mut text = String::new();
            let file = File::open(file).ok()?;
            file.take(FILE_MAX).read_to_string(&mut text).ok()?;
            Some(text)
        });
        Self::parse(&text.unwrap_or_default())
    }

    /// The command that installs it here; `None` if the distribution is not known, has no package of it, or adds no packages to a node
    /// that runs.
    #[must_use]
    pub fn install_command(&self, needed: Needed) -> Option<String> {
        let of_word = |word: &String| {
            FAMILIES
                .iter()
                .find(|family| family.ids.contains(&word.as_str()))
        };
        let family = self.words.iter().find_map(of_word)?;
        let install = if self.is_ostree {
            "rpm-ostree install"
        } else {
            family.install?
        };
        Some(format!("{install} {}", (family.packages)(needed)?))
    }

    /// The same as the end of an error.
    #[must_use]
    pub fn advice(&self, needed: Needed) -> String {
        self.install_command(needed).map_or_else(
            || "install it".to_owned(),
            |command| format!("run `{command}`"),
        )
    }
}

const fn of_debian(needed: Needed) -> Option<&'static str> {
    match needed {
        Needed::AppArmorParser => Some("apparmor"),
        Needed::CniPlugins => Some("containernetworking-plugins"),
        Needed::Containerd => Some("containerd"),
        Needed::Criu => Some("criu"),
        Needed::Iptables => Some("iptables"),
    }
}

const fn of_fedora(needed: Needed) -> Option<&'static str> {
    match needed {
        // Its kernel confines by SELinux.
        Needed::AppArmorParser => None,
        Needed::CniPlugins => Some("containernetworking-plugins"),
        Needed::Containerd => Some("containerd"),
        Needed::Criu => Some("criu"),
        Needed::Iptables => Some("iptables-nft"),
    }
}

const fn of_rhel(needed: Needed) -> Option<&'static str> {
    match needed {
        // Of Docker's repository, which the distribution has none of.
        Needed::Containerd => Some("containerd.io"),
        Needed::AppArmorParser | Needed::CniPlugins | Needed::Criu | Needed::Iptables => {
            of_fedora(needed)
        }
    }
}

const fn of_amazon(needed: Needed) -> Option<&'static str> {
    match needed {
        Needed::CniPlugins => Some("cni-plugins"),
        Needed::AppArmorParser | Needed::Containerd | Needed::Criu | Needed::Iptables => {
            of_fedora(needed)
        }
    }
}

const fn of_suse(needed: Needed) -> Option<&'static str> {
    match needed {
        Needed::AppArmorParser => Some("apparmor-parser"),
        Needed::CniPlugins | Needed::Containerd | Needed::Criu | Needed::Iptables => {
            of_alpine(needed)
        }
    }
}

const fn of_alpine(needed: Needed) -> Option<&'static str> {
    match needed {
        Needed::CniPlugins => Some("cni-plugins"),
        Needed::AppArmorParser | Needed::Containerd | Needed::Criu | Needed::Iptables => {
            of_debian(needed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_that_of_the_distribution_or_of_what_it_is_made_from() {
        for (text, needed, expected) in [
            (
                "ID=debian\n",
                Needed::Iptables,
                Some("apt-get install iptables"),
            ),
            (
                "NAME=\"Linux Mint\"\nID=linuxmint\nID_LIKE=\"ubuntu debian\"\n",
                Needed::CniPlugins,
                Some("apt-get install containernetworking-plugins"),
            ),
            (
                "ID=fedora\n",
                Needed::Containerd,
                Some("dnf install containerd"),
            ),
            (
                "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n",
                Needed::Containerd,
                Some("dnf install containerd.io"),
            ),
            (
                "ID=\"rhel\"\nID_LIKE=\"fedora\"\n",
                Needed::Iptables,
                Some("dnf install iptables-nft"),
            ),
            (
                "ID=\"rhel\"\nID_LIKE=\"fedora\"\n",
                Needed::AppArmorParser,
                None,
            ),
            (
                "ID=\"ol\"\nID_LIKE=\"fedora\"\n",
                Needed::Containerd,
                Some("dnf install containerd.io"),
            ),
            (
                "ID=\"amzn\"\nID_LIKE=\"fedora\"\n",
                Needed::CniPlugins,
                Some("dnf install cni-plugins"),
            ),
            (
                "ID=fedora\nVARIANT_ID=coreos\nOSTREE_VERSION='43.1'\n",
                Needed::Criu,
                Some("rpm-ostree install criu"),
            ),
            (
                "ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n",
                Needed::AppArmorParser,
                Some("zypper install apparmor-parser"),
            ),
            (
                "ID=\"opensuse-microos\"\nID_LIKE=\"suse opensuse opensuse-tumbleweed microos\"\n",
                Needed::CniPlugins,
                Some("transactional-update pkg install cni-plugins"),
            ),
            ("ID=alpine\n", Needed::Criu, Some("apk add criu")),
            (
                "ID=manjaro\nID_LIKE=arch\n",
                Needed::CniPlugins,
                Some("pacman -S cni-plugins"),
            ),
            ("ID=flatcar\nID_LIKE=coreos\n", Needed::Containerd, None),
            ("ID=nixos\n", Needed::Iptables, None),
            ("ID=talos\n", Needed::Iptables, None),
            ("ID=bottlerocket\n", Needed::Iptables, None),
            ("ID=of-nobody\nVERSION_ID=1\n", Needed::Iptables, None),
            // Of another key.
            ("VERSION_ID=debian\n", Needed::Iptables, None),
            ("", Needed::Iptables, None),
        ] {
            let release = OsRelease::parse(text);
            let command = release.install_command(needed);
            assert_eq!(command.as_deref(), expected, "{text}");
            let advice = match expected {
                Some(command) => format!("run `{command}`"),
                None => "install it".to_owned(),
            };
            assert_eq!(release.advice(needed), advice, "{text}");
        }
    }
}
