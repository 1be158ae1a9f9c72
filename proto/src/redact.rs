//! `Debug` for messages that carry credentials: says which fields are set, never what they hold.

use std::collections::BTreeMap;
use std::fmt;

use crate::docker::swarmkit::v1 as swarm;
use crate::{cri, nomad, switchyard};

/// Prints in place of a secret whether there is one.
struct Secret<'a>(&'a str);

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() {
            "unset"
        } else {
            "redacted"
        })
    }
}

impl fmt::Debug for cri::v1::AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            username,
            password,
            auth,
            server_address,
            identity_token,
            registry_token,
        } = self;
        f.debug_struct("AuthConfig")
            .field("username", &Secret(username))
            .field("password", &Secret(password))
            .field("auth", &Secret(auth))
            .field("server_address", server_address)
            .field("identity_token", &Secret(identity_token))
            .field("registry_token", &Secret(registry_token))
            .finish()
    }
}

/// Prints in place of bytes how many they are.
struct Bytes<'a>(&'a [u8]);

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// Prints the names of variables in the form `NAME=VALUE`, never their values.
struct Variables<'a>(&'a [String]);

impl fmt::Debug for Variables<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.0.iter().map(|variable| variable.split('=').next()))
            .finish()
    }
}

/// Prints the names of variables, never their values.
struct Names<'a>(&'a BTreeMap<String, String>);

impl fmt::Debug for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl fmt::Debug for nomad::base::proto::SetConfigRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            msgpack_config,
            nomad_config,
            plugin_api_version,
        } = self;
        f.debug_struct("SetConfigRequest")
            .field("msgpack_config", &Bytes(msgpack_config))
            .field("nomad_config", nomad_config)
            .field("plugin_api_version", plugin_api_version)
            .finish()
    }
}

impl fmt::Debug for switchyard::nomad::v1::OpenRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            role,
            name,
            msgpack_config,
            nomad_config,
            version,
        } = self;
        f.debug_struct("OpenRequest")
            .field("role", role)
            .field("name", name)
            .field("msgpack_config", &Bytes(msgpack_config))
            .field("nomad_config", &Bytes(nomad_config))
            .field("version", version)
            .finish()
    }
}

impl fmt::Debug for nomad::drivers::proto::TaskConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            name,
            msgpack_driver_config,
            env,
            device_env,
            resources,
            mounts,
            devices,
            user,
            alloc_dir,
            stdout_path,
            stderr_path,
            task_group_name,
            job_name,
            alloc_id,
            network_isolation_spec,
            dns,
            job_id,
            namespace,
            node_name,
            node_id,
            parent_job_id,
        } = self;
        f.debug_struct("TaskConfig")
            .field("id", id)
            .field("name", name)
            .field("msgpack_driver_config", &Bytes(msgpack_driver_config))
            .field("env", &Names(env))
            .field("device_env", &Names(device_env))
            .field("resources", resources)
            .field("mounts", mounts)
            .field("devices", devices)
            .field("user", user)
            .field("alloc_dir", alloc_dir)
            .field("stdout_path", stdout_path)
            .field("stderr_path", stderr_path)
            .field("task_group_name", task_group_name)
            .field("job_name", job_name)
            .field("alloc_id", alloc_id)
            .field("network_isolation_spec", network_isolation_spec)
            .field("dns", dns)
            .field("job_id", job_id)
            .field("namespace", namespace)
            .field("node_name", node_name)
            .field("node_id", node_id)
            .field("parent_job_id", parent_job_id)
            .finish()
    }
}

impl fmt::Debug for swarm::IssueNodeCertificateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            role,
            csr,
            token,
            availability,
        } = self;
        f.debug_struct("IssueNodeCertificateRequest")
            .field("role", role)
            .field("csr", &Bytes(csr))
            .field("token", &Secret(token))
            .field("availability", availability)
            .finish()
    }
}

impl fmt::Debug for swarm::EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            subsystem,
            algorithm,
            key,
            lamport_time,
        } = self;
        f.debug_struct("EncryptionKey")
            .field("subsystem", subsystem)
            .field("algorithm", algorithm)
            .field("key", &Bytes(key))
            .field("lamport_time", lamport_time)
            .finish()
    }
}

impl fmt::Debug for swarm::SecretSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            annotations,
            data,
            templating,
            driver,
        } = self;
        f.debug_struct("SecretSpec")
            .field("annotations", annotations)
            .field("data", &Bytes(data))
            .field("templating", templating)
            .field("driver", driver)
            .finish()
    }
}

impl fmt::Debug for swarm::ConfigSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            annotations,
            data,
            templating,
        } = self;
        f.debug_struct("ConfigSpec")
            .field("annotations", annotations)
            .field("data", &Bytes(data))
            .field("templating", templating)
            .finish()
    }
}

impl fmt::Debug for swarm::container_spec::PullOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { registry_auth } = self;
        f.debug_struct("PullOptions")
            .field("registry_auth", &Secret(registry_auth))
            .finish()
    }
}

impl fmt::Debug for swarm::VolumeAssignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            volume_id,
            driver,
            volume_context,
            publish_context,
            access_mode,
            secrets,
        } = self;
        f.debug_struct("VolumeAssignment")
            .field("id", id)
            .field("volume_id", volume_id)
            .field("driver", driver)
            .field("volume_context", &Names(volume_context))
            .field("publish_context", &Names(publish_context))
            .field("access_mode", access_mode)
            .field("secrets", secrets)
            .finish()
    }
}

impl fmt::Debug for swarm::LogMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            context,
            timestamp,
            stream,
            data,
            attrs,
        } = self;
        f.debug_struct("LogMessage")
            .field("context", context)
            .field("timestamp", timestamp)
            .field("stream", stream)
            .field("data", &Bytes(data))
            .field("attrs", attrs)
            .finish()
    }
}

impl fmt::Debug for swarm::ContainerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            image,
            labels,
            command,
            args,
            env,
            dir,
            user,
            mounts,
            stop_grace_period,
            pull_options,
            groups,
            secrets,
            tty,
            hostname,
            dns_config,
            healthcheck,
            hosts,
            open_stdin,
            read_only,
            stop_signal,
            configs,
            privileges,
            init,
            isolation,
            pids_limit,
            sysctls,
            capability_add,
            capability_drop,
            ulimits,
            oom_score_adj,
        } = self;
        f.debug_struct("ContainerSpec")
            .field("image", image)
            .field("labels", labels)
            .field("command", command)
            .field("args", args)
            .field("env", &Variables(env))
            .field("dir", dir)
            .field("user", user)
            .field("mounts", mounts)
            .field("stop_grace_period", stop_grace_period)
            .field("pull_options", pull_options)
            .field("groups", groups)
            .field("secrets", secrets)
            .field("tty", tty)
            .field("hostname", hostname)
            .field("dns_config", dns_config)
            .field("healthcheck", healthcheck)
            .field("hosts", hosts)
            .field("open_stdin", open_stdin)
            .field("read_only", read_only)
            .field("stop_signal", stop_signal)
            .field("configs", configs)
            .field("privileges", privileges)
            .field("init", init)
            .field("isolation", isolation)
            .field("pids_limit", pids_limit)
            .field("sysctls", sysctls)
            .field("capability_add", capability_add)
            .field("capability_drop", capability_drop)
            .field("ulimits", ulimits)
            .field("oom_score_adj", oom_score_adj)
            .finish()
    }
}
