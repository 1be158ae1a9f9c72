//! `Debug` for messages that carry credentials: says which fields are set, never what they hold.

use std::collections::BTreeMap;
use std::fmt;

use crate::{cri, nomad, switchyard};

/// Prints in place of a secret whether there is one.
struct Secret<'a>(&'a str);

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "unset" } else { "redacted" })
    }
}

impl fmt::Debug for cri::v1::AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { username, password, auth, server_address, identity_token, registry_token } = self;
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

/// Prints the names of variables, never their values.
struct Names<'a>(&'a BTreeMap<String, String>);

impl fmt::Debug for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl fmt::Debug for nomad::base::proto::SetConfigRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { msgpack_config, nomad_config, plugin_api_version } = self;
        f.debug_struct("SetConfigRequest")
            .field("msgpack_config", &Bytes(msgpack_config))
            .field("nomad_config", nomad_config)
            .field("plugin_api_version", plugin_api_version)
            .finish()
    }
}

impl fmt::Debug for switchyard::nomad::v1::OpenRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { role, name, msgpack_config, nomad_config, version } = self;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_of_credentials_shows_only_which_are_set() {
        let auth = cri::v1::AuthConfig {
            username: "hunter".into(),
            password: "two".into(),
            server_address: "registry.example".into(),
            ..Default::default()
        };
        let request = cri::v1::PullImageRequest { auth: Some(auth), ..Default::default() };
        let shown = format!("{request:?}");
        assert!(!shown.contains("hunter") && !shown.contains("two"), "{shown}");
        assert!(shown.contains("password: redacted") && shown.contains("identity_token: unset"), "{shown}");
        assert!(shown.contains("registry.example"), "{shown}");
    }

    #[test]
    fn debug_of_a_task_hides_environment_values_and_configuration() {
        let env = BTreeMap::from([("VAULT_TOKEN".to_owned(), "hunter2".to_owned())]);
        let msgpack_driver_config = b"password hunter2".to_vec();
        let task = nomad::drivers::proto::TaskConfig { env, msgpack_driver_config, ..Default::default() };
        let shown = format!("{task:?}");
        assert!(shown.contains("VAULT_TOKEN") && shown.contains("16 bytes"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn debug_of_a_plugin_configuration_shows_only_its_length() {
        let bytes = b"hunter2".to_vec();
        let set =
            nomad::base::proto::SetConfigRequest { msgpack_config: bytes.clone(), ..Default::default() };
        let open = switchyard::nomad::v1::OpenRequest { msgpack_config: bytes, ..Default::default() };
        for shown in [format!("{set:?}"), format!("{open:?}")] {
            assert!(shown.contains("7 bytes") && !shown.contains("hunter2"), "{shown}");
        }
    }
}
