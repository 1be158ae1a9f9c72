//! A seccomp profile file, in Docker's format (with conditions) or in that of the OCI runtime spec.

use serde::Deserialize;

use crate::input::Arch;
use crate::oci::{LinuxSeccomp, LinuxSeccompArg, LinuxSyscall};

/// A condition on an argument.
pub(super) type Argument = LinuxSeccompArg;

impl Argument {
    pub(super) fn new(index: u32, op: &str, value: u64) -> Self {
        Self {
            index,
            value,
            value_two: 0,
            op: op.to_owned(),
        }
    }
}

/// A profile.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Profile {
    default_action: String,
    #[serde(default)]
    default_errno_ret: Option<u32>,
    #[serde(default)]
    architectures: Option<Vec<String>>,
    #[serde(default)]
    arch_map: Option<Vec<ArchMap>>,
    #[serde(default)]
    flags: Option<Vec<String>>,
    #[serde(default)]
    listener_path: String,
    #[serde(default)]
    syscalls: Option<Vec<Rule>>,
}

/// An architecture, with the others whose programs it also runs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArchMap {
    architecture: String,
    #[serde(default)]
    sub_architectures: Option<Vec<String>>,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Rule {
    #[serde(default)]
    name: String,
    #[serde(default)]
    names: Vec<String>,
    action: String,
    #[serde(default)]
    errno_ret: Option<u32>,
    #[serde(default)]
    args: Option<Vec<Argument>>,
    #[serde(default)]
    includes: Option<Conditions>,
    #[serde(default)]
    excludes: Option<Conditions>,
}

/// The conditions under which a rule applies, or does not apply.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Conditions {
    #[serde(default)]
    pub(super) caps: Option<Vec<String>>,
    #[serde(default)]
    pub(super) arches: Option<Vec<String>>,
    #[serde(default)]
    pub(super) min_kernel: String,
}

/// The values with which conditions are compared.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) arch: Arch,
    pub(super) kernel: (u32, u32),
    /// The bounding set.
    pub(super) capabilities: &'a [String],
}

// === impl Rule ===

impl Rule {
    /// Allows the named system calls, which are separated by blanks.
    pub(super) fn allow(names: &str) -> Self {
        Self {
            names: names.split_whitespace().map(str::to_owned).collect(),
            action: "SCMP_ACT_ALLOW".to_owned(),
            ..Self::default()
        }
    }

    /// Makes the named system calls fail with `errno`.
    pub(super) fn errno(names: &str, errno: u32) -> Self {
        Self {
            action: "SCMP_ACT_ERRNO".to_owned(),
            errno_ret: Some(errno),
            ..Self::allow(names)
        }
    }

    pub(super) fn argument(mut self, argument: Argument) -> Self {
        self.args.get_or_insert_default().push(argument);
        self
    }

    pub(super) fn includes(mut self, conditions: Conditions) -> Self {
        self.includes = Some(conditions);
        self
    }

    pub(super) fn excludes(mut self, conditions: Conditions) -> Self {
        self.excludes = Some(conditions);
        self
    }

    fn counts(&self, setting: Setting<'_>) -> Result<bool, String> {
        let included = match &self.includes {
            Some(conditions) => conditions.all_hold(setting)?,
            None => true,
        };
        let excluded = match &self.excludes {
            Some(conditions) => conditions.any_holds(setting)?,
            None => false,
        };
        Ok(included && !excluded)
    }
}

// === impl Conditions ===

impl Conditions {
    pub(super) fn of_capability(name: &str) -> Self {
        Self {
            caps: Some(vec![name.to_owned()]),
            ..Self::default()
        }
    }

    pub(super) fn of_arches(names: &[&str]) -> Self {
        Self {
            arches: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..Self::default()
        }
    }

    /// Returns whether all conditions hold; absent ones do.
    fn all_hold(&self, setting: Setting<'_>) -> Result<bool, String> {
        let arches = self.arches.as_deref().unwrap_or_default();
        let caps = self.caps.as_deref().unwrap_or_default();
        Ok((arches.is_empty() || has_arch(arches, setting.arch))
            && caps.iter().all(|name| setting.capabilities.contains(name))
            && self
                .min_kernel()?
                .is_none_or(|least| setting.kernel >= least))
    }

    /// Returns whether any condition that is given holds.
    fn any_holds(&self, setting: Setting<'_>) -> Result<bool, String> {
        let caps = self.caps.as_deref().unwrap_or_default();
        Ok(
            has_arch(self.arches.as_deref().unwrap_or_default(), setting.arch)
                || caps.iter().any(|name| setting.capabilities.contains(name))
                || self
                    .min_kernel()?
                    .is_some_and(|least| setting.kernel >= least),
        )
    }

    fn min_kernel(&self) -> Result<Option<(u32, u32)>, String> {
        if self.min_kernel.is_empty() {
            return Ok(None);
        }
        self.min_kernel
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
            .map(Some)
            .ok_or_else(|| format!("minKernel {:?} is no version as 4.8", self.min_kernel))
    }
}

// === impl Profile ===

impl Profile {
    pub(super) fn new(default_action: &str, rules: Vec<Rule>) -> Self {
        Self {
            default_action: default_action.to_owned(),
            syscalls: Some(rules),
            ..Self::default()
        }
    }

    /// The filter for a task. The error is a description of what is wrong with the profile.
    pub(super) fn resolved(&self, setting: Setting<'_>) -> Result<LinuxSeccomp, String> {
        checked_action(&self.default_action)?;
        if !self.listener_path.is_empty() {
            return Err("listenerPath is not supported: nothing here would listen".to_owned());
        }
        let mut syscalls = Vec::new();
        for rule in self.syscalls.as_deref().unwrap_or_default() {
            checked_action(&rule.action)?;
            let args = rule.args.clone().unwrap_or_default();
            args.iter().try_for_each(checked_argument)?;
            let names = match (rule.name.as_str(), rule.names.is_empty()) {
                ("", false) => rule.names.clone(),
                ("", true) => return Err("a rule names no system call".to_owned()),
                (name, true) => vec![name.to_owned()],
                (name, false) => {
                    return Err(format!("the rule for {name} has both name and names"));
                }
            };
            if rule.counts(setting)? {
                syscalls.push(LinuxSyscall {
                    names,
                    action: rule.action.clone(),
                    errno_ret: rule.errno_ret,
                    args,
                });
            }
        }
        Ok(LinuxSeccomp {
            default_action: self.default_action.clone(),
            default_errno_ret: self.default_errno_ret,
            architectures: self.architectures(setting.arch)?,
            flags: self.flags.clone().unwrap_or_default(),
            syscalls,
        })
    }

    fn architectures(&self, arch: Arch) -> Result<Vec<String>, String> {
        match (
            self.architectures.as_deref().unwrap_or_default(),
            self.arch_map.as_deref().unwrap_or_default(),
        ) {
            ([], []) => Ok(Vec::new()),
            (list, []) => Ok(list.to_vec()),
            ([], map) => {
                let native = native_architectures(arch)
                    .first()
                    .copied()
                    .unwrap_or_default();
                let Some(found) = map.iter().find(|entry| entry.architecture == native) else {
                    return Ok(Vec::new());
                };
                let subs = found.sub_architectures.clone().unwrap_or_default();
                Ok(std::iter::once(found.architecture.clone())
                    .chain(subs)
                    .collect())
            }
            (_, _) => Err("it has both architectures and archMap".to_owned()),
        }
    }
}

/// The architectures whose programs a processor runs, its own first.
pub(super) const fn native_architectures(arch: Arch) -> &'static [&'static str] {
    match arch {
        Arch::X86_64 => &["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        Arch::Aarch64 => &["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"],
        Arch::Other => &[],
    }
}

fn has_arch(names: &[String], arch: Arch) -> bool {
    let own = match arch {
        Arch::X86_64 => "amd64",
        Arch::Aarch64 => "arm64",
        Arch::Other => return false,
    };
    names.iter().any(|name| name == own)
}

fn checked_action(action: &str) -> Result<(), String> {
    const KNOWN: [&str; 8] = [
        "KILL",
        "KILL_PROCESS",
        "KILL_THREAD",
        "TRAP",
        "ERRNO",
        "TRACE",
        "ALLOW",
        "LOG",
    ];
    match action.strip_prefix("SCMP_ACT_") {
        Some(name) if KNOWN.contains(&name) => Ok(()),
        Some("NOTIFY") => {
            Err("action SCMP_ACT_NOTIFY is not supported: nothing here would listen".to_owned())
        }
        Some(_) | None => Err(format!("action {action:?} is unknown")),
    }
}

fn checked_argument(argument: &Argument) -> Result<(), String> {
    const KNOWN: [&str; 7] = ["NE", "LT", "LE", "EQ", "GE", "GT", "MASKED_EQ"];
    if argument.index > 5 {
        return Err(format!(
            "argument {} is beyond the last one, 5",
            argument.index
        ));
    }
    match argument.op.strip_prefix("SCMP_CMP_") {
        Some(name) if KNOWN.contains(&name) => Ok(()),
        Some(_) | None => Err(format!("comparison {:?} is unknown", argument.op)),
    }
}
