//! The parameters of a launcher.

use std::path::PathBuf;

/// The plugin type of a launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The task driver.
    Driver,
    /// The device plugin.
    Device,
}

/// The parameters of a launcher.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The plugin type.
    pub role: Role,
    /// The name by which jobs refer to the plugin; `None` is [`Role::default_name`].
    pub name: Option<String>,
    /// The socket on which the daemon serves launchers.
    pub daemon: PathBuf,
    /// The version reported to the agent: a semantic version.
    pub version: &'static str,
    /// The agent's environment variables about sockets.
    pub socket_env: SocketEnv,
}

/// The agent's settings for sockets in its plugin's environment. Nomad sets none; other hosts of go-plugin
/// may.
#[derive(Debug, Clone, Default)]
pub struct SocketEnv {
    /// The directory for the socket.
    pub socket_dir: Option<PathBuf>,
    /// True if the host asks whether one connection can carry several.
    pub multiplex: bool,
}

// === impl Role ===

impl Role {
    /// The name of the plugin by default.
    #[must_use]
    pub const fn default_name(self) -> &'static str {
        match self {
            Self::Driver => "switchyard",
            Self::Device => "switchyard-device",
        }
    }

    /// The name of the role in messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Device => "device",
        }
    }
}

// === impl Launch ===

impl Launch {
    /// The name by which jobs refer to the plugin.
    pub(super) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.role.default_name())
    }
}

// === impl SocketEnv ===

impl SocketEnv {
    /// The settings in this process's environment.
    #[must_use]
    pub fn from_env() -> Self {
        let given = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            socket_dir: given("PLUGIN_UNIX_SOCKET_DIR").map(PathBuf::from),
            multiplex: given("PLUGIN_MULTIPLEX_GRPC").is_some(),
        }
    }
}
