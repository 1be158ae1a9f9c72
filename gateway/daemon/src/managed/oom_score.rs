//! The OOM score of a managed process, within the bounds of what this process may set.

use std::fs;

use switchyard_linux::host_features::in_user_namespace;

/// The bit of CAP_SYS_RESOURCE (capabilities(7)).
const CAP_SYS_RESOURCE: u32 = 24;

/// The OOM score adjustment of this process, and whether it may lower it (proc(5), `oom_score_adj`): by a capability in the kernel's
/// first user namespace, whatever this process has in its own.
pub(super) struct OomScore {
    pub(super) current: i32,
    pub(super) may_lower: bool,
}

impl OomScore {
    pub(super) fn of_this_process() -> Self {
        let read =
            |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let capabilities = read("status")
            .lines()
            .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok())
            .unwrap_or_default();
        Self {
            current: read("oom_score_adj").trim().parse().unwrap_or_default(),
            may_lower: capabilities & (1 << CAP_SYS_RESOURCE) != 0 && !in_user_namespace(),
        }
    }

    /// The allowed score nearest to `wanted` for a child; `None` if that is the inherited one. containerd
    /// does not start if its configuration has a score that it may not set.
    pub(super) fn allowed(&self, wanted: i32) -> Option<i32> {
        let score = if self.may_lower {
            wanted
        } else {
            wanted.max(self.current)
        };
        (score != self.current).then_some(score)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oom_score_is_clamped_to_the_permitted_range() {
        assert_eq!(
            OomScore {
                current: 0,
                may_lower: false
            }
            .allowed(-999),
            None
        );
        assert_eq!(
            OomScore {
                current: -5,
                may_lower: false
            }
            .allowed(-999),
            None
        );
        assert_eq!(
            OomScore {
                current: 0,
                may_lower: false
            }
            .allowed(100),
            Some(100)
        );
        assert_eq!(
            OomScore {
                current: 0,
                may_lower: true
            }
            .allowed(-999),
            Some(-999)
        );
        assert_eq!(
            OomScore {
                current: -999,
                may_lower: true
            }
            .allowed(-999),
            None
        );
    }
}
