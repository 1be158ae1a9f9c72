//! The operator's view of the daemon's components: their reports, and what can be changed: configuration,
//! processes and membership of a swarm. The daemon implements these traits.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use switchyard_core::Result;
use switchyard_operator_api::{
    ConfigView, HostView, ReloadReport, RestartReport, SwarmJoin, SwarmView,
};

use crate::metrics::{ReloadCounts, ReportedFigures};
use crate::status::Part;

/// A component that reports its condition to operators: a frontend, or a process that the daemon needs.
pub trait Reporter: Send + Sync + 'static {
    /// Its parts now, in the order of display; none while it has nothing to report. Does not block.
    fn parts(&self) -> Vec<Part>;

    /// Adds its own figures to those of the others. Does not block.
    fn count(&self, _figures: &mut ReportedFigures) {}
}

/// A process that the daemon needs.
pub trait RestartableProcess: Reporter {
    /// The name of its part.
    fn name(&self) -> &'static str;

    /// The process that runs, if it is known.
    fn pid(&self) -> Option<i32>;

    /// The version that it reports; `None` if it reports none, or does not answer.
    fn version(&self) -> Option<String>;

    /// Returns whether it has read the configuration that this daemon generates for it; `None` if there is none, or that is
    /// not known.
    fn is_configuration_current(&self) -> Option<bool>;

    /// Ends it and waits for the next one to serve, and to keep the listeners of the daemon if it does so. If it is
    /// dropped, the restart continues.
    fn restart(&self) -> BoxFuture<'_, std::result::Result<RestartReport, RestartError>>;
}

/// The registration host of vendors' device plugins.
pub trait PluginHost: Send + Sync + 'static {
    /// Its plugins, for display; `None` while none can register.
    fn view(&self) -> Option<HostView>;
}

/// The configuration of the daemon, as operators look at it and reload it.
pub trait ConfigControl: Send + Sync + 'static {
    /// Its state.
    fn view(&self) -> ConfigView;

    /// The numbers of reloads.
    fn counts(&self) -> ReloadCounts;

    /// The configuration in force as TOML, without secrets; `with_origins` adds the source of each value.
    fn dump(&self, with_origins: bool) -> String;

    /// Reloads it and returns what changed. If the future is dropped, the reload continues.
    ///
    /// # Errors
    /// [`ReloadFailure`]; the former configuration is in force then.
    fn reload(&self) -> BoxFuture<'_, std::result::Result<Arc<ReloadReport>, ReloadFailure>>;
}

/// Reason why the configuration was not reloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReloadFailure {
    /// True if the files have to be changed before the next attempt.
    pub is_refusal: bool,
    /// The reason.
    pub text: String,
}

/// The node's part in a Docker swarm.
pub trait SwarmControl: Send + Sync + 'static {
    /// Its state, for display.
    fn view(&self) -> SwarmView;

    /// Joins a swarm. If the future is dropped, the join continues.
    ///
    /// # Errors
    /// `InvalidArgument` for a request that cannot be right; no text shows the token. Otherwise those of the join.
    fn join(&self, request: SwarmJoin) -> BoxFuture<'_, Result<()>>;

    /// Leaves the swarm. If the future is dropped, the leave continues.
    ///
    /// # Errors
    /// `FailedPrecondition` if the node is in no swarm; otherwise those of the leave.
    fn leave(&self) -> BoxFuture<'_, Result<()>>;
}

/// Reason why a part was not restarted.
#[derive(Debug, thiserror::Error)]
pub enum RestartError {
    /// The daemon does not manage the process, and no service of systemd or OpenRC does.
    #[error(
        "{name}, process {pid}, is managed neither by this daemon nor as a service of systemd or OpenRC: restart it as it was started"
    )]
    External {
        /// The part.
        name: &'static str,
        /// The process.
        pid: i32,
    },
    /// It does not run, so that it is not known what would have to start it.
    #[error(
        "{0} does not run and is not managed by this daemon: start it as it was started before"
    )]
    Absent(&'static str),
    /// The next process would not start, because the configuration that it would read is invalid.
    #[error(
        "{name} is not restarted, because its next process would read the configuration, which is invalid: {why}; correct that, and try again"
    )]
    Configuration {
        /// The part.
        name: &'static str,
        /// The error of the configuration.
        why: String,
    },
    /// The service manager could not be asked.
    #[error("cannot run {command}")]
    ServiceManager {
        /// The command.
        command: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The service manager did not restart the service.
    #[error("{command} failed: {text}")]
    Refused {
        /// The command.
        command: String,
        /// Errors that it has printed.
        text: String,
    },
    /// No new process served in time.
    #[error("{name} did not serve again within {limit:?}: {state}; containers keep running")]
    Deadline {
        /// The part.
        name: &'static str,
        /// Time limit of the restart.
        limit: Duration,
        /// Its state.
        state: String,
    },
    /// The new process serves, and does not keep the listeners of the daemon yet.
    #[error(
        "{name} was restarted and serves as process {pid}, but does not keep the sockets of the daemon after {limit:?}: clients are refused if the daemon ends before it does; the daemon continues to try, and its log at level debug says why it fails"
    )]
    Listeners {
        /// The part.
        name: &'static str,
        /// Its process.
        pid: i32,
        /// Time limit for that.
        limit: Duration,
    },
    /// The daemon ends.
    #[error(
        "the daemon is stopping; the next one starts what does not run, and containers continue: run the command again"
    )]
    Stopping,
}
