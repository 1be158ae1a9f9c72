//! The processors and the memory of the node.

use std::fs;

use switchyard_core::spec::{CpuSet, Reserved};

/// The kernel's list of online processors.
const ONLINE: &str = "/sys/devices/system/cpu/online";

const MEMORY: &str = "/proc/meminfo";

/// All processors and memory of the node; `None`, and a warning in the log, if they cannot be read.
pub(crate) fn of_node() -> Option<Reserved> {
    let read = |path: &str| {
        fs::read_to_string(path)
            .inspect_err(|error| tracing::warn!(path, %error, "the node's processors and memory are unknown: overcommit is not detected"))
            .ok()
    };
    let online = read(ONLINE)?;
    let memory = read(MEMORY)?;
    let found = parse(&online, &memory);
    if found.is_none() {
        tracing::warn!(
            "{ONLINE} and {MEMORY} do not have the node's processors and memory: overcommit is not detected"
        );
    }
    found
}

fn parse(online: &str, meminfo: &str) -> Option<Reserved> {
    let processors = online.parse::<CpuSet>().ok()?.count();
    let total = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let found = Reserved {
        cpu_milli: processors.checked_mul(1000)?,
        memory_bytes: kibibytes.checked_mul(1024)?,
    };
    (found.cpu_milli > 0 && found.memory_bytes > 0).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_capacity_files_are_parsed() {
        let meminfo = "MemTotal:       24619552 kB\nMemFree:        17305044 kB\n";
        let expected = Reserved {
            cpu_milli: 5000,
            memory_bytes: 24_619_552 * 1024,
        };
        assert_eq!(parse("0-3,6\n", meminfo), Some(expected));
        for (online, meminfo) in [
            ("", meminfo),
            ("x", meminfo),
            ("0", ""),
            ("0", "MemTotal: 1 MB\n"),
        ] {
            assert_eq!(parse(online, meminfo), None, "{online:?} {meminfo:?}");
        }
    }
}
