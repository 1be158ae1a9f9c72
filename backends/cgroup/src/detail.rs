//! Details of a cgroup beyond its usage: processes, open files, devices, huge pages. One pass reads many
//! groups, and what they have in common only once.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use switchyard_core::stats::{Detail, DeviceIo, HugepageUsage};

use crate::error::{Error, Result};
use crate::files::{is_gone, read_if_there, read_parsed};
use crate::group::Group;
use crate::hierarchy::CgroupMode;
use crate::parse::{device_operations, limit_v2, nested_keyed, number};
use crate::process::{open_files, open_files_limit};
use crate::reader::Reader;
use crate::usage::least;

/// The kernel's limits on the threads of the whole node.
const NODE_LIMITS: [&str; 2] = ["/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max"];

/// One pass over many groups. It caches what groups have in common, so make a new one each time.
#[derive(Debug)]
pub struct Pass<'a> {
    reader: &'a Reader,
    /// The lowest limit on threads of a group and its ancestors, by the group's path.
    thread_limits: HashMap<PathBuf, Option<u64>>,
    device_names: HashMap<(u64, u64), String>,
    /// The sizes of huge pages for which groups have files; `None` until a group is read that has a directory.
    page_sizes: Option<Vec<String>>,
}

impl Reader {
    /// A pass over many groups, for what is more expensive to read than usage.
    #[must_use]
    pub fn pass(&self) -> Pass<'_> {
        Pass::new(self)
    }
}

impl<'a> Pass<'a> {
    pub(crate) fn new(reader: &'a Reader) -> Self {
        Self {
            reader,
            thread_limits: HashMap::new(),
            device_names: HashMap::new(),
            page_sizes: None,
        }
    }

    /// The details of `group`, whose main process is `main`; `None` if it does not exist. Blocks only on
    /// reads of kernel files.
    ///
    /// # Errors
    /// [`Error::File`] if an existing file cannot be read.
    pub fn detail(&mut self, group: &Group, main: Option<u32>) -> Result<Option<Detail>> {
        let Some(pids) = self.reader.procs(group)? else {
            return Ok(None);
        };
        // A process that has exited since the list was read has no open files.
        let open: Vec<_> = pids.iter().filter_map(|pid| open_files(*pid)).collect();
        let seen = !open.is_empty();
        Ok(Some(Detail {
            oom_kills: self.reader.oom_kills(group)?,
            devices: self.devices(group)?,
            hugepages: self.hugepages(group)?,
            processes: u64::try_from(pids.len()).ok(),
            threads_limit: self.threads_limit(group)?,
            open_files: seen.then(|| open.iter().map(|open| open.files).sum()),
            sockets: seen.then(|| open.iter().map(|open| open.sockets).sum()),
            open_files_limit: main.and_then(open_files_limit),
        }))
    }

    fn devices(&mut self, group: &Group) -> Result<Vec<DeviceIo>> {
        let Some(dir) = self
            .reader
            .existing("blkio", group)
            .or_else(|| self.reader.existing("io", group))
        else {
            return Ok(Vec::new());
        };
        let mut devices = match self.reader.hierarchy().mode() {
            CgroupMode::V1 => v1_devices(&dir)?,
            CgroupMode::V2 => v2_devices(&dir)?,
        };
        for device in &mut devices {
            let number = (device.major, device.minor);
            let name = self
                .device_names
                .entry(number)
                .or_insert_with(|| device_name(number.0, number.1));
            device.device.clone_from(name);
        }
        Ok(devices)
    }

    fn hugepages(&mut self, group: &Group) -> Result<Vec<HugepageUsage>> {
        // A hybrid layout may have this controller in its v2 tree.
        let own = self.reader.existing("hugetlb", group);
        let Some(dir) = own.or_else(|| self.reader.hierarchy().unified(group)) else {
            return Ok(Vec::new());
        };
        if self.page_sizes.is_none() {
            self.page_sizes = page_sizes(&dir)?;
        }
        let mut all = Vec::new();
        for size in self.page_sizes.iter().flatten() {
            let file = |name: &str| dir.join(format!("hugetlb.{size}.{name}"));
            let usage = match read_parsed(&file("current"), number)? {
                Some(usage) => Some(usage),
                None => read_parsed(&file("usage_in_bytes"), number)?,
            };
            let Some(usage_bytes) = usage else { continue };
            let peak_bytes = read_parsed(&file("max_usage_in_bytes"), number)?;
            all.push(HugepageUsage {
                page_size: size.clone(),
                usage_bytes,
                peak_bytes,
            });
        }
        Ok(all)
    }

    /// The lowest limit on threads: of the group, its ancestors, and the node.
    fn threads_limit(&mut self, group: &Group) -> Result<Option<u64>> {
        let own = match self.reader.existing("pids", group) {
            Some(dir) => read_parsed(&dir.join("pids.max"), limit_v2)?,
            None => None,
        };
        let above = match group.parent() {
            Some(parent) => self.limit_above(&parent)?,
            None => node_limit()?,
        };
        Ok(least(own, above))
    }

    /// As [`Pass::threads_limit`], cached: for a parent, whose other children will need it too.
    fn limit_above(&mut self, group: &Group) -> Result<Option<u64>> {
        if let Some(known) = self.thread_limits.get(group.relative()) {
            return Ok(*known);
        }
        let limit = self.threads_limit(group)?;
        self.thread_limits
            .insert(group.relative().to_owned(), limit);
        Ok(limit)
    }
}

fn node_limit() -> Result<Option<u64>> {
    let mut limit = None;
    for file in NODE_LIMITS {
        limit = least(limit, read_parsed(Path::new(file), number)?);
    }
    Ok(limit)
}

/// The path of a block device, by its numbers; the numbers as text if it has no path, as the devices of
/// network file systems.
#[must_use]
pub fn device_name(major: u64, minor: u64) -> String {
    let uevent =
        fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/uevent")).unwrap_or_default();
    match uevent
        .lines()
        .find_map(|line| line.strip_prefix("DEVNAME="))
    {
        Some(name) => format!("/dev/{name}"),
        None => format!("{major}:{minor}"),
    }
}

/// The sizes of huge pages that the kernel accounts, from the names of a group's files; `None` if the group
/// does not exist in this hierarchy.
fn page_sizes(dir: &Path) -> Result<Option<Vec<String>>> {
    let names = fs::read_dir(dir).and_then(|entries| {
        entries
            .map(|entry| Ok(entry?.file_name()))
            .collect::<io::Result<Vec<_>>>()
    });
    let names = match names {
        Ok(names) => names,
        Err(error) if is_gone(&error) => return Ok(None),
        Err(source) => {
            return Err(Error::File {
                path: dir.to_owned(),
                source,
            });
        }
    };
    let mut sizes: Vec<String> = names
        .into_iter()
        .filter_map(|name| {
            let name = name.into_string().ok()?;
            let size = name.strip_prefix("hugetlb.")?;
            let size = size
                .strip_suffix(".current")
                .or_else(|| size.strip_suffix(".usage_in_bytes"))?;
            // Reservations have files of their own, as `2MB.rsvd`.
            (!size.contains('.')).then(|| size.to_owned())
        })
        .collect();
    sizes.sort();
    Ok(Some(sizes))
}

/// I/O by device from `blkio`, including descendants where the kernel has recursive files.
fn v1_devices(dir: &Path) -> Result<Vec<DeviceIo>> {
    let read = |name: &str| {
        let whole = read_if_there(&dir.join(format!("blkio.throttle.{name}_recursive")))?;
        match whole {
            Some(text) => Ok(Some(text)),
            None => read_if_there(&dir.join(format!("blkio.throttle.{name}"))),
        }
    };
    let mut devices: Vec<DeviceIo> = Vec::new();
    let bytes = read("io_service_bytes")?.unwrap_or_default();
    for (number, operation, value) in device_operations(&bytes) {
        device_entry(&mut devices, number)
            .bytes
            .push((operation.to_owned(), value));
    }
    let operations = read("io_serviced")?.unwrap_or_default();
    for (number, operation, value) in device_operations(&operations) {
        device_entry(&mut devices, number)
            .operations
            .push((operation.to_owned(), value));
    }
    Ok(devices)
}

/// I/O by device from `io.stat`.
fn v2_devices(dir: &Path) -> Result<Vec<DeviceIo>> {
    let text = read_if_there(&dir.join("io.stat"))?.unwrap_or_default();
    let mut devices = Vec::new();
    for (number, values) in nested_keyed(&text) {
        for (key, value) in values {
            let device = device_entry(&mut devices, number);
            match key {
                "rbytes" => device.bytes.push(("Read".to_owned(), value)),
                "wbytes" => device.bytes.push(("Write".to_owned(), value)),
                "dbytes" => device.bytes.push(("Discard".to_owned(), value)),
                "rios" => device.operations.push(("Read".to_owned(), value)),
                "wios" => device.operations.push(("Write".to_owned(), value)),
                "dios" => device.operations.push(("Discard".to_owned(), value)),
                _ => {}
            }
        }
    }
    Ok(devices)
}

/// The entry of a device, which is added if it is missing.
fn device_entry(devices: &mut Vec<DeviceIo>, (major, minor): (u64, u64)) -> &mut DeviceIo {
    let at = devices
        .iter()
        .position(|device| (device.major, device.minor) == (major, minor));
    let at = at.unwrap_or_else(|| {
        devices.push(DeviceIo {
            major,
            minor,
            ..DeviceIo::default()
        });
        devices.len() - 1
    });
    &mut devices[at]
}
