//! Decodes the options of a task, and refuses by name those that have no effect with containerd but would be
//! missed.

use switchyard_core::image::Credentials;
use switchyard_core::spec::{CpuPeriod, OomScoreAdj, PidsLimit};
use switchyard_core::{Error, Result};
use switchyard_docker_options::local_volume::{LocalVolume, local_volume};
use switchyard_docker_options::sizes::size;

use super::{DeviceOptions, MountKind, MountOptions, TaskOptions, TmpfsEntry, Volume};
use crate::value::Block;

impl TaskOptions {
    /// Decodes the options from an agent's encoding.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the key; `Unimplemented` for unsupported options.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut block = Block::decode(bytes)?;
        refuse_foreign(&mut block)?;
        let mut options = Self::default();
        options.read_image(&mut block)?;
        options.read_process(&mut block)?;
        options.read_security(&mut block)?;
        options.read_network(&mut block)?;
        options.read_storage(&mut block)?;
        options.read_resources(&mut block)?;
        options.read_rest(&mut block)?;
        Ok(options)
    }

    fn read_image(&mut self, block: &mut Block) -> Result<()> {
        self.image = block.text("image")?;
        if self.image.is_empty() {
            return Err(Error::invalid("image", "image name required"));
        }
        self.load = block.text("load")?;
        self.force_pull = yes(block, "force_pull")?;
        self.image_pull_timeout = block.duration("image_pull_timeout")?;
        if self
            .image_pull_timeout
            .is_some_and(|timeout| timeout.is_zero())
        {
            return Err(Error::invalid("image_pull_timeout", "it cannot be 0"));
        }
        self.auth = credentials(block.block("auth")?)?;
        self.auth_soft_fail = yes(block, "auth_soft_fail")?;
        Ok(())
    }

    fn read_process(&mut self, block: &mut Block) -> Result<()> {
        self.entrypoint = block.texts("entrypoint")?;
        self.command = block.text("command")?;
        self.args = block.texts("args")?;
        self.work_dir = block.text("work_dir")?;
        self.init = yes(block, "init")?;
        self.interactive = yes(block, "interactive")?;
        self.tty = yes(block, "tty")?;
        self.hostname = block.text("hostname")?;
        self.labels = block.pairs("labels")?;
        self.group_add = block.texts("group_add")?;
        self.runtime = block.text("runtime")?;
        Ok(())
    }

    fn read_security(&mut self, block: &mut Block) -> Result<()> {
        self.privileged = yes(block, "privileged")?;
        self.cap_add = block.texts("cap_add")?;
        self.cap_drop = block.texts("cap_drop")?;
        self.security_opt = block.texts("security_opt")?;
        self.readonly_rootfs = yes(block, "readonly_rootfs")?;
        self.pid_mode = block.text("pid_mode")?;
        self.ipc_mode = block.text("ipc_mode")?;
        self.uts_mode = block.text("uts_mode")?;
        self.userns_mode = block.text("userns_mode")?;
        self.cgroupns = block.text("cgroupns")?;
        Ok(())
    }

    fn read_network(&mut self, block: &mut Block) -> Result<()> {
        self.network_mode = block.text("network_mode")?;
        self.ports = block.texts("ports")?;
        self.port_map = block.pairs("port_map")?;
        self.ipv4_address = block.text("ipv4_address")?;
        self.mac_address = block.text("mac_address")?;
        self.extra_hosts = block.texts("extra_hosts")?;
        self.dns_servers = block.texts("dns_servers")?;
        self.dns_search_domains = block.texts("dns_search_domains")?;
        self.dns_options = block.texts("dns_options")?;
        Ok(())
    }

    fn read_storage(&mut self, block: &mut Block) -> Result<()> {
        self.volumes = block
            .texts("volumes")?
            .iter()
            .enumerate()
            .map(|(index, text)| Volume::parse(format!("volumes[{index}]"), text))
            .collect::<Result<_>>()?;
        self.volume_driver = block.text("volume_driver")?;
        for mount in block
            .blocks("mount")?
            .into_iter()
            .chain(block.blocks("mounts")?)
        {
            self.mounts.push(mount_options(mount)?);
        }
        self.tmpfs = block
            .texts("tmpfs")?
            .iter()
            .enumerate()
            .map(|(index, text)| TmpfsEntry::parse(format!("tmpfs[{index}]"), text))
            .collect::<Result<_>>()?;
        self.shm_size_bytes = block.count("shm_size")?.unwrap_or_default();
        for (option, value) in block.pairs("storage_opt")? {
            let field = format!("storage_opt.{option}");
            if option != "size" {
                return Err(Error::unimplemented(format!(
                    "{field}: only size can be set here"
                )));
            }
            let bytes = size(&value).filter(|bytes| *bytes > 0);
            let wrong = || Error::invalid(field, format!("{value:?} is no size such as \"10G\""));
            self.storage_bytes = Some(bytes.ok_or_else(wrong)?);
        }
        for mut device in block.blocks("devices")? {
            self.devices.push(DeviceOptions {
                field: device.path().to_owned(),
                host_path: device.text("host_path")?,
                container_path: device.text("container_path")?,
                cgroup_permissions: device.text("cgroup_permissions")?,
            });
        }
        Ok(())
    }

    fn read_resources(&mut self, block: &mut Block) -> Result<()> {
        self.cpu_hard_limit = yes(block, "cpu_hard_limit")?;
        self.cpu_cfs_period = match block.count("cpu_cfs_period")? {
            None | Some(0) => None,
            Some(us) => Some(CpuPeriod::new(us).map_err(|error| error.in_field("cpu_cfs_period"))?),
        };
        self.memory_hard_limit_mb = block.count("memory_hard_limit")?.unwrap_or_default();
        self.pids_limit = match block.number("pids_limit")? {
            None | Some(0) => None,
            Some(..0) => Some(PidsLimit::UNLIMITED),
            Some(most) => Some(PidsLimit::new(most).map_err(|error| error.in_field("pids_limit"))?),
        };
        self.oom_score_adj = match block.number("oom_score_adj")? {
            None | Some(0) => None,
            Some(score) => {
                Some(OomScoreAdj::new(score).map_err(|error| error.in_field("oom_score_adj"))?)
            }
        };
        self.ulimit = block.pairs("ulimit")?;
        self.sysctl = block.pairs("sysctl")?;
        if !block.text("cpuset_cpus")?.is_empty() {
            self.warn("cpuset_cpus has no effect: reserve cores in the job's resources");
        }
        Ok(())
    }

    /// Options with no effect, or hardly any.
    fn read_rest(&mut self, block: &mut Block) -> Result<()> {
        let mut logging = block.block("logging")?;
        let kind = logging.text("type")?;
        let driver = logging.text("driver")?;
        let named = if kind.is_empty() { driver } else { kind };
        match named.as_str() {
            "" => {}
            "none" => self.discards_output = true,
            other => self.warn(format!(
                "logging {other:?} has no effect: output goes to the agent's log files"
            )),
        }
        logging.pairs("config")?;
        block.block("healthchecks")?.flag("disable")?;
        block.number("container_exists_attempts")?;
        Ok(())
    }

    fn warn(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }
}

/// A flag that defaults to false.
fn yes(block: &mut Block, key: &str) -> Result<bool> {
    block.flag(key).map(Option::unwrap_or_default)
}

/// Refuses options that exist only with Docker, or only on Windows.
fn refuse_foreign(block: &mut Block) -> Result<()> {
    let isolation = block.text("isolation")?;
    if !matches!(isolation.as_str(), "" | "default") {
        return Err(Error::unimplemented(format!(
            "isolation: {isolation:?} is for Windows"
        )));
    }
    if !block.texts("network_aliases")?.is_empty() {
        let why = "network_aliases: there are no networks of Docker here; have services find each other by the job's services";
        return Err(Error::unimplemented(why));
    }
    if !block.text("ipv6_address")?.is_empty() {
        let why = "ipv6_address: an address of its own can only be asked for in IPv4";
        return Err(Error::unimplemented(why));
    }
    if yes(block, "advertise_ipv6_address")? {
        let why = "advertise_ipv6_address: services find tasks at the address that their ports are published on";
        return Err(Error::unimplemented(why));
    }
    Ok(())
}

fn credentials(mut block: Block) -> Result<Option<Credentials>> {
    let username = block.text("username")?;
    let password = block.text("password")?;
    // Credentials always apply to the registry of the image; Docker ignores both keys as well.
    let _ = (block.text("email")?, block.text("server_address")?);
    Ok(match (username.as_str(), password.as_str()) {
        ("", "") => None,
        ("<token>", _) => Some(Credentials::IdentityToken(password)),
        _ => Some(Credentials::Basic { username, password }),
    })
}

fn mount_options(mut block: Block) -> Result<MountOptions> {
    let kind = block.text("type")?;
    let source = block.text("source")?;
    let propagation = block.block("bind_options")?.text("propagation")?;
    let mut tmpfs = block.block("tmpfs_options")?;
    let size = tmpfs.count("size")?;
    let mode = tmpfs.count("mode")?.unwrap_or_default();
    let target = block.text("target")?;
    let readonly = yes(&mut block, "readonly")?;
    let (copied, local) = volume_options(block.block("volume_options")?)?;
    let kind = match kind.as_str() {
        "" | "volume" if local != LocalVolume::Directory => MountKind::FileSystem(local),
        "" | "volume" if source.is_empty() => {
            let why = "a volume needs a name here: an unnamed one could never be removed";
            return Err(Error::unimplemented(format!(
                "{}: {why}",
                block.at("source")
            )));
        }
        "" | "volume" => MountKind::Volume {
            name: source,
            copied,
        },
        "bind" if source.is_empty() => {
            return Err(Error::invalid(block.at("source"), "a bind needs it"));
        }
        "bind" => MountKind::Bind {
            source,
            propagation,
        },
        "tmpfs" if !source.is_empty() => {
            return Err(Error::invalid(block.at("source"), "a tmpfs has none"));
        }
        "tmpfs" => {
            let known = u32::try_from(mode).ok().filter(|mode| *mode <= 0o7777);
            let wrong = || Error::invalid(tmpfs.at("mode"), format!("{mode:o} (octal) is no mode"));
            let mode = known.ok_or_else(wrong)?;
            MountKind::Tmpfs {
                size_bytes: size.unwrap_or_default(),
                mode,
            }
        }
        other => {
            let why = format!("{other:?} is none of volume, bind and tmpfs");
            return Err(Error::invalid(block.at("type"), why));
        }
    };
    Ok(MountOptions {
        field: block.path().to_owned(),
        target,
        readonly,
        kind,
    })
}

/// Reads whether a volume is initialised from the image, and its kind.
fn volume_options(mut block: Block) -> Result<(bool, LocalVolume)> {
    let copied = !yes(&mut block, "no_copy")?;
    block.pairs("labels")?;
    let mut driver = block.block("driver_config")?;
    let name = driver.text("name")?;
    if !matches!(name.as_str(), "" | "local") {
        return Err(Error::unimplemented(format!(
            "{}: there is no volume driver {name:?}",
            driver.at("name")
        )));
    }
    let options = driver.pairs("options")?;
    Ok((copied, local_volume(&driver.at("options"), &options)?))
}
