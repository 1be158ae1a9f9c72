//! AppArmor profile and SELinux labels.

use std::collections::BTreeSet;

use switchyard_core::spec::{AppArmorProfile, Security, SelinuxLabel};
use switchyard_core::{Error, Result};

use crate::input::{Host, SelinuxDefaults};

/// The SELinux type of a privileged task, which the policy does not confine.
const PRIVILEGED_TYPE: &str = "spc_t";

/// The AppArmor profile of a task. A privileged one has none.
///
/// # Errors
/// `FailedPrecondition` for a profile of the host, or the default one, on a node that cannot use it although the
/// kernel has AppArmor; for one of the host also without AppArmor; `InvalidArgument` for an empty
/// name.
pub fn apparmor(security: &Security, host: &Host) -> Result<Option<String>> {
    if security.privileged {
        return Ok(None);
    }
    match &security.apparmor {
        Some(AppArmorProfile::Unconfined) => Ok(None),
        Some(AppArmorProfile::RuntimeDefault) if let Some(why) = &host.apparmor_fault => {
            Err(Error::failed_precondition(format!(
                "the default AppArmor profile cannot be used: {why}"
            )))
        }
        None | Some(AppArmorProfile::RuntimeDefault) => Ok(host.apparmor.clone()),
        Some(AppArmorProfile::Localhost(name)) if name.is_empty() || name.contains('\0') => {
            Err(Error::invalid(
                "security.apparmor",
                format!("{name:?} cannot name a profile"),
            ))
        }
        Some(AppArmorProfile::Localhost(name)) if host.apparmor.is_none() => {
            Err(Error::failed_precondition(format!(
                "AppArmor profile {name} cannot be used: {}",
                host.apparmor_fault
                    .as_deref()
                    .unwrap_or("AppArmor is off on this node")
            )))
        }
        Some(AppArmorProfile::Localhost(name)) => Ok(Some(name.clone())),
    }
}

/// Number of categories that policies have.
const CATEGORIES: u32 = 1024;

/// The SELinux labels of a process and of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    /// Label of the process.
    pub process: String,
    /// Label of its files and mounts, with the categories as the kernel returns them: what has the label is known by its text.
    pub mount: String,
    /// Label of files that tasks of all sandboxes may use: it has no categories.
    pub shared: String,
}

/// The labels of a task: the requested ones, else the sandbox's, with the policy's defaults for empty parts;
/// `None` where SELinux is off. If only a level is given, the default types are used; without one, the level is the
/// sandbox's, so that the tasks of a sandbox can use each other's files.
///
/// # Errors
/// `InvalidArgument`, naming `security.selinux`, for a part that is not valid in a label.
pub fn selinux(
    security: &Security,
    sandbox: Option<&SelinuxLabel>,
    host: &Host,
) -> Result<Option<Labels>> {
    let Some(defaults) = &host.selinux else {
        return Ok(None);
    };
    let mut wish = security
        .selinux
        .as_ref()
        .or(sandbox)
        .cloned()
        .unwrap_or_default();
    if let (true, Some(sandbox)) = (wish.level.is_empty(), sandbox) {
        wish.level.clone_from(&sandbox.level);
    }
    // Frontends check this too, but sandboxes of earlier versions were recorded without that check.
    wish.check("security.selinux")?;
    let SelinuxLabel {
        user,
        role,
        type_,
        level,
    } = &wish;
    let SelinuxDefaults {
        process,
        file,
        readonly_file: _,
    } = defaults;
    let own_type = if type_.is_empty() && security.privileged {
        PRIVILEGED_TYPE
    } else {
        type_
    };
    Ok(Some(Labels {
        process: filled(process, [user, role, own_type, level]),
        // Files get only the user and the level: role and type are those of processes.
        mount: filled(file, [user, "", "", &as_stored(level)]),
        shared: filled(file, [user, "", "", ""]),
    }))
}

/// `default` with its four parts replaced by those that are not empty. The level itself may contain `:`; a policy
/// without levels has none.
fn filled(default: &str, parts: [&str; 4]) -> String {
    let mut defaults = default.splitn(4, ':');
    let label = parts.map(|part| {
        let default = defaults.next().unwrap_or_default();
        if part.is_empty() { default } else { part }
    });
    let label: Vec<&str> = label.into_iter().filter(|part| !part.is_empty()).collect();
    label.join(":")
}

/// A level in the notation in which the kernel returns it, with categories in order; unchanged if they have other names.
fn as_stored(level: &str) -> String {
    let ends: Option<Vec<String>> = level.splitn(2, '-').map(end_as_stored).collect();
    match ends.as_deref() {
        Some([low, high]) if low != high => format!("{low}-{high}"),
        Some([one, ..]) => one.clone(),
        Some([]) | None => level.to_owned(),
    }
}

/// One end of a range of levels. Three categories in a row, or more, are a range.
fn end_as_stored(level: &str) -> Option<String> {
    let Some((sensitivity, listed)) = level.split_once(':') else {
        return Some(level.to_owned());
    };
    let mut all = BTreeSet::new();
    for part in listed.split(',') {
        let (first, last) = part.split_once('.').unwrap_or((part, part));
        all.extend(category(first)?..=category(last)?);
    }
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in all {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |(first, last): (u32, u32)| match last - first {
        0 => format!("c{first}"),
        1 => format!("c{first},c{last}"),
        _ => format!("c{first}.c{last}"),
    };
    let runs: Vec<String> = runs.into_iter().map(run).collect();
    (!runs.is_empty()).then(|| format!("{sensitivity}:{}", runs.join(",")))
}

fn category(name: &str) -> Option<u32> {
    let number = name.strip_prefix('c')?.parse().ok()?;
    // Policies have no other names, as `c01`.
    (number < CATEGORIES && name == format!("c{number}")).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::bare_host;

    fn security(label: Option<SelinuxLabel>) -> Security {
        Security {
            selinux: label,
            ..Default::default()
        }
    }

    #[test]
    fn selinux_level_keeps_default_types_and_task_overrides_sandbox() {
        let host = Host {
            selinux: Some(SelinuxDefaults::default()),
            ..bare_host()
        };
        let level = |level: &str| SelinuxLabel {
            level: level.to_owned(),
            ..Default::default()
        };
        let labels = selinux(&security(None), Some(&level("s0:c1,c2")), &host)
            .unwrap()
            .unwrap();
        assert_eq!(labels.process, "system_u:system_r:container_t:s0:c1,c2");
        assert_eq!(labels.mount, "system_u:object_r:container_file_t:s0:c1,c2");
        let labels = selinux(
            &security(Some(level("s1"))),
            Some(&level("s0:c1,c2")),
            &host,
        )
        .unwrap()
        .unwrap();
        assert_eq!(labels.process, "system_u:system_r:container_t:s1");
        assert_eq!(labels.shared, "system_u:object_r:container_file_t:s0");
    }

    #[test]
    fn task_without_a_level_has_its_sandboxs() {
        let host = Host {
            selinux: Some(SelinuxDefaults::default()),
            ..bare_host()
        };
        let label = |type_: &str, level: &str| SelinuxLabel {
            type_: type_.to_owned(),
            level: level.to_owned(),
            ..Default::default()
        };
        let of_sandbox = label("", "s0:c3,c4");
        for (task, privileged, process) in [
            (None, false, "system_u:system_r:container_t:s0:c3,c4"),
            (None, true, "system_u:system_r:spc_t:s0:c3,c4"),
            (
                Some(label("web_t", "")),
                false,
                "system_u:system_r:web_t:s0:c3,c4",
            ),
            (
                Some(label("web_t", "")),
                true,
                "system_u:system_r:web_t:s0:c3,c4",
            ),
            (
                Some(label("web_t", "s0:c9")),
                false,
                "system_u:system_r:web_t:s0:c9",
            ),
        ] {
            let of_task = Security {
                privileged,
                ..security(task.clone())
            };
            let labels = selinux(&of_task, Some(&of_sandbox), &host)
                .unwrap()
                .unwrap();
            assert_eq!(labels.process, process, "{task:?} {privileged}");
        }
    }

    /// Otherwise the files of a level such as `OpenShift` gives, `s0:c26,c5`, would be labelled at each start anew.
    #[test]
    fn files_have_the_level_as_the_kernel_returns_it() {
        let host = Host {
            selinux: Some(SelinuxDefaults::default()),
            ..bare_host()
        };
        for (asked, stored) in [
            ("s0", "s0"),
            ("s0:c5,c26", "s0:c5,c26"),
            ("s0:c26,c5", "s0:c5,c26"),
            ("s0:c7,c7", "s0:c7"),
            ("s0:c1.c2", "s0:c1,c2"),
            ("s0:c3,c1,c2", "s0:c1.c3"),
            ("s0:c9,c1.c3,c4", "s0:c1.c4,c9"),
            ("s0:c0.c1023", "s0:c0.c1023"),
            ("s0-s0:c9,c3", "s0-s0:c3,c9"),
            ("s0:c2,c1-s0:c1,c2", "s0:c1,c2"),
            ("s0:c2,c1-s15:c4,c3", "s0:c1,c2-s15:c3,c4"),
            // What the kernel refuses, or another policy knows.
            ("s0:c9.c1", "s0:c9.c1"),
            ("s0:c2000,c1", "s0:c2000,c1"),
            ("s0:c09,c1", "s0:c09,c1"),
            ("s0:secret,c1", "s0:secret,c1"),
        ] {
            let label = SelinuxLabel {
                level: asked.to_owned(),
                ..Default::default()
            };
            let labels = selinux(&security(Some(label)), None, &host);
            let labels = labels.unwrap().unwrap();
            let file = format!("system_u:object_r:container_file_t:{stored}");
            assert_eq!(labels.mount, file, "{asked}");
            let process = format!("system_u:system_r:container_t:{asked}");
            assert_eq!(labels.process, process);
        }
    }

    #[test]
    fn privileged_task_has_no_selinux_confinement() {
        let host = Host {
            selinux: Some(SelinuxDefaults::default()),
            ..bare_host()
        };
        let security = Security {
            privileged: true,
            ..Default::default()
        };
        assert_eq!(
            selinux(&security, None, &host).unwrap().unwrap().process,
            "system_u:system_r:spc_t:s0"
        );
    }

    #[test]
    fn no_labels_without_selinux_and_invalid_parts_are_rejected() {
        assert_eq!(selinux(&security(None), None, &bare_host()).unwrap(), None);
        let host = Host {
            selinux: Some(SelinuxDefaults::default()),
            ..bare_host()
        };
        let bad = SelinuxLabel {
            type_: "a:b".to_owned(),
            ..Default::default()
        };
        assert!(selinux(&security(Some(bad)), None, &host).is_err());
        let quoted = SelinuxLabel {
            level: "s0\",upperdir=/x,a=\"".to_owned(),
            ..Default::default()
        };
        assert!(selinux(&security(Some(quoted.clone())), None, &host).is_err());
        assert!(
            selinux(&security(None), Some(&quoted), &host).is_err(),
            "also that of a sandbox on record"
        );
    }

    #[test]
    fn default_apparmor_profile_applies_where_available() {
        let with = Host {
            apparmor: Some("switchyard-default".to_owned()),
            ..bare_host()
        };
        let profile = |profile: AppArmorProfile| Security {
            apparmor: Some(profile),
            ..Default::default()
        };
        assert_eq!(
            apparmor(&Security::default(), &with).unwrap().as_deref(),
            Some("switchyard-default")
        );
        assert_eq!(apparmor(&Security::default(), &bare_host()).unwrap(), None);
        assert_eq!(
            apparmor(&profile(AppArmorProfile::Unconfined), &with).unwrap(),
            None
        );
        let local = profile(AppArmorProfile::Localhost("mine".to_owned()));
        assert_eq!(apparmor(&local, &with).unwrap().as_deref(), Some("mine"));
        assert!(
            apparmor(&local, &bare_host())
                .unwrap_err()
                .to_string()
                .contains("mine")
        );
        let inside = Host {
            apparmor_fault: Some("this node is in a user namespace".to_owned()),
            ..bare_host()
        };
        let default = profile(AppArmorProfile::RuntimeDefault);
        for named in [&local, &default] {
            let error = apparmor(named, &inside).unwrap_err().to_string();
            assert!(error.contains("in a user namespace"), "{error}");
        }
        let unconfined = profile(AppArmorProfile::Unconfined);
        for unnamed in [&Security::default(), &unconfined] {
            assert_eq!(apparmor(unnamed, &inside).unwrap(), None);
        }
        assert_eq!(apparmor(&default, &bare_host()).unwrap(), None);
        assert_eq!(
            apparmor(
                &Security {
                    privileged: true,
                    ..local
                },
                &with
            )
            .unwrap(),
            None
        );
    }
}
