//! The options of a tmpfs, as Docker passes them on to the kernel.

use crate::sizes::size;

/// Flags besides `ro`, `rw`, `exec`, `noexec` and `defaults`.
const FLAGS: [&str; 15] = [
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "sync",
    "async",
    "dirsync",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
];

/// A tmpfs with its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tmpfs {
    /// Its size in bytes; 0 for the kernel's default.
    pub size_bytes: u64,
    /// The permission bits of its root.
    pub mode: u32,
    /// True if it is read-only.
    pub readonly: bool,
    exec: bool,
    /// Percentage of the node's memory, instead of a size in bytes.
    size_percent: Option<u8>,
    uid: Option<u32>,
    gid: Option<u32>,
    inodes: Option<u64>,
    blocks: Option<u64>,
    /// Each once, in the order in which they were set.
    flags: Vec<&'static str>,
}

impl Default for Tmpfs {
    /// Returns the tmpfs that Docker mounts without options.
    fn default() -> Self {
        Self {
            size_bytes: 0,
            mode: 0o1777,
            readonly: false,
            exec: false,
            size_percent: None,
            uid: None,
            gid: None,
            inodes: None,
            blocks: None,
            flags: Vec::new(),
        }
    }
}

impl Tmpfs {
    /// Sets an option, `name` or `name=value`. Later options override earlier ones. `None` if there is no such option, or
    /// its value is malformed; nothing is set then.
    #[must_use]
    pub fn set(&mut self, option: &str) -> Option<()> {
        let Some((name, value)) = option.split_once('=') else {
            return self.set_flag(option);
        };
        match name {
            "size" => {
                (self.size_bytes, self.size_percent) = match value.strip_suffix('%') {
                    Some(percent) => (0, Some(percentage(percent)?)),
                    None => (size(value)?, None),
                };
            }
            "mode" => {
                let mode = u32::from_str_radix(value, 8).ok();
                self.mode = mode.filter(|mode| *mode <= 0o7777)?;
            }
            "uid" => self.uid = Some(value.parse().ok()?),
            "gid" => self.gid = Some(value.parse().ok()?),
            "nr_inodes" => self.inodes = Some(size(value)?),
            "nr_blocks" => self.blocks = Some(size(value)?),
            _ => return None,
        }
        Some(())
    }

    fn set_flag(&mut self, flag: &str) -> Option<()> {
        match flag {
            "ro" => self.readonly = true,
            "rw" => self.readonly = false,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "defaults" => {}
            other => {
                let known = FLAGS.into_iter().find(|known| *known == other)?;
                self.flags.retain(|set| *set != known);
                self.flags.push(known);
            }
        }
        Some(())
    }

    /// The options that are neither size in bytes, mode nor read-only, for the mount: names of this module and numbers
    /// alone.
    #[must_use]
    pub fn mount_options(&self) -> Vec<String> {
        let mut list = Vec::new();
        if !self.exec {
            list.push("noexec".to_owned());
        }
        list.extend(self.flags.iter().map(|flag| (*flag).to_owned()));
        let numbers = [
            ("uid", self.uid.map(u64::from)),
            ("gid", self.gid.map(u64::from)),
            ("nr_inodes", self.inodes),
            ("nr_blocks", self.blocks),
        ];
        for (name, number) in numbers {
            list.extend(number.map(|number| format!("{name}={number}")));
        }
        list.extend(self.size_percent.map(|percent| format!("size={percent}%")));
        list
    }
}

/// A part of the whole, from 1 to 100.
fn percentage(text: &str) -> Option<u8> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse::<u8>().ok().filter(|_| digits)?;
    (1..=100).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tmpfs(options: &str) -> Option<Tmpfs> {
        let mut tmpfs = Tmpfs::default();
        for option in options.split(',') {
            tmpfs.set(option)?;
        }
        Some(tmpfs)
    }

    #[test]
    fn tmpfs_options_reach_the_mount_as_with_docker() {
        for (options, (size_bytes, mode, readonly), expected) in [
            ("rw", (0, 0o1777, false), &["noexec"][..]),
            (
                "uid=1000,gid=100,mode=700",
                (0, 0o700, false),
                &["noexec", "uid=1000", "gid=100"],
            ),
            ("exec,size=64m,ro", (64 << 20, 0o1777, true), &[]),
            (
                "size=1g,size=10%",
                (0, 0o1777, false),
                &["noexec", "size=10%"],
            ),
            ("size=10%,size=1k", (1024, 0o1777, false), &["noexec"]),
            (
                "nr_inodes=10k,nr_blocks=5",
                (0, 0o1777, false),
                &["noexec", "nr_inodes=10240", "nr_blocks=5"],
            ),
            (
                "suid,noatime,nosuid,suid",
                (0, 0o1777, false),
                &["noexec", "noatime", "nosuid", "suid"],
            ),
            ("exec,noexec,ro,rw", (0, 0o1777, false), &["noexec"]),
            ("defaults,ro", (0, 0o1777, true), &["noexec"]),
        ] {
            let tmpfs = tmpfs(options).expect(options);
            assert_eq!(
                (tmpfs.size_bytes, tmpfs.mode, tmpfs.readonly),
                (size_bytes, mode, readonly),
                "{options}"
            );
            assert_eq!(tmpfs.mount_options(), expected, "{options}");
        }
    }

    #[test]
    fn what_is_no_option_of_a_tmpfs_is_refused() {
        for option in [
            "size=much",
            "size=0%",
            "size=101%",
            "size=+1%",
            "mode=9",
            "mode=77777",
            "uid=root",
            "uid=-1",
            "uid=4294967296",
            "gid=",
            "nr_inodes=all",
            "mpol=bind:0",
            "remount",
            "bind",
            "shared",
            "exec=1",
            "",
        ] {
            assert_eq!(tmpfs(option), None, "{option}");
        }
    }
}
