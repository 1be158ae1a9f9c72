//! Tests of the driver with an in-memory backend, as an agent uses it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt;
use nomad::driver_server::Driver as _;
use switchyard_core::gateway::{Gateway, Limits};
use switchyard_core::id::Owner;
use switchyard_fake::{BUSYBOX, Fake, Method};
use tempfile::TempDir;
use tonic::Code;

use super::*;
use crate::plugin_config::PluginConfig;
use crate::session::{Processors, SESSION_KEY, SessionGuard};

mod command;
mod destroying;
mod ends;
mod hostile;
mod leases;
mod left;
mod many;
mod ports;
mod siblings;
mod starting;
mod storm;
mod unfinished;
mod unreadable;
mod whole;

const ALLOC: &str = "3a7c11aa-0000-4000-8000-0123456789ab";
const SESSION: &str = "the-session";

/// An agent with its driver, on an in-memory backend.
struct DriverFixture {
    fake: Fake,
    gateway: Gateway,
    driver: Driver,
    sessions: Sessions,
    open: SessionGuard,
    dir: TempDir,
}

fn session(config: PluginConfig) -> Session {
    Session {
        id: SESSION.into(),
        driver: "switchyard".into(),
        config: Arc::new(config),
        processors: Processors {
            cores: 2,
            total_mhz: 5000,
        },
        version: String::new(),
    }
}

async fn over(fake: Fake, config: PluginConfig, dir: TempDir) -> DriverFixture {
    let gateway = Gateway::new(Arc::new(fake.clone()), Limits::default());
    gateway.recover().await.expect("the fake recovers");
    let sessions = Sessions::default();
    let open = sessions.open(session(config));
    let driver = Driver::new(gateway.scope(Owner::Nomad), sessions.clone());
    DriverFixture {
        fake,
        gateway,
        driver,
        sessions,
        open,
        dir,
    }
}

async fn fixture_with(config: PluginConfig) -> DriverFixture {
    let dir = tempfile::tempdir().expect("there is room");
    for part in ["alloc/logs", "web/local", "web/secrets"] {
        std::fs::create_dir_all(dir.path().join(ALLOC).join(part)).expect("there is room");
    }
    over(Fake::with_busybox(), config, dir).await
}

async fn fixture() -> DriverFixture {
    fixture_with(PluginConfig::default()).await
}

/// A call as the launcher forwards it.
fn call<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request
        .metadata_mut()
        .insert(SESSION_KEY, SESSION.parse().expect("it is ASCII"));
    request
}

impl DriverFixture {
    /// The daemon is killed, and its successor has the same agent.
    async fn restarted(self) -> Self {
        self.restarted_with(PluginConfig::default()).await
    }

    /// As [`DriverFixture::restarted`]; the agent has this configuration from now on.
    async fn restarted_with(self, config: PluginConfig) -> Self {
        let Self {
            fake,
            gateway: _,
            driver: _,
            sessions: _,
            open,
            dir,
        } = self;
        drop(open);
        over(fake.reopen(), config, dir).await
    }

    /// The request of a task that runs this command.
    fn request(&self, start: &str, command: &[&str]) -> nomad::TaskConfig {
        let text = |text: &str| rmpv::Value::from(text);
        let (first, rest) = command
            .split_first()
            .expect("a command is more than nothing");
        let config = rmpv::Value::Map(vec![
            (text("image"), text(BUSYBOX)),
            (text("command"), text(first)),
            (
                text("args"),
                rmpv::Value::Array(rest.iter().map(|arg| text(arg)).collect()),
            ),
        ]);
        let mut msgpack_driver_config = Vec::new();
        rmpv::encode::write_value(&mut msgpack_driver_config, &config)
            .expect("a vector grows as it must");
        let alloc_dir: PathBuf = self.dir.path().join(ALLOC);
        nomad::TaskConfig {
            id: format!("{ALLOC}/web/{start}"),
            name: "web".into(),
            alloc_id: ALLOC.into(),
            alloc_dir: alloc_dir.display().to_string(),
            env: BTreeMap::from([("NOMAD_TASK_DIR".to_owned(), "/local".to_owned())]),
            msgpack_driver_config,
            ..Default::default()
        }
    }

    async fn start(&self, request: &nomad::TaskConfig) -> Result<nomad::StartTaskResponse, Status> {
        let message = nomad::StartTaskRequest {
            task: Some(request.clone()),
        };
        self.driver
            .start_task(call(message))
            .await
            .map(Response::into_inner)
    }

    /// A task that runs this command, by its id.
    async fn running(&self, command: &[&str]) -> String {
        let request = self.request("00000001", command);
        self.start(&request).await.expect("it starts");
        request.id
    }

    async fn wait(&self, id: &str) -> Result<nomad::WaitTaskResponse, Status> {
        let message = nomad::WaitTaskRequest {
            task_id: id.to_owned(),
        };
        self.driver
            .wait_task(call(message))
            .await
            .map(Response::into_inner)
    }

    async fn stop(&self, id: &str, signal: &str, seconds: i64) -> Result<(), Status> {
        let timeout = Some(prost_types::Duration { seconds, nanos: 0 });
        let message = nomad::StopTaskRequest {
            task_id: id.to_owned(),
            timeout,
            signal: signal.to_owned(),
        };
        self.driver.stop_task(call(message)).await.map(drop)
    }

    async fn destroy(&self, id: &str, force: bool) -> Result<(), Status> {
        let message = nomad::DestroyTaskRequest {
            task_id: id.to_owned(),
            force,
        };
        self.driver.destroy_task(call(message)).await.map(drop)
    }

    async fn recover(&self, request: &nomad::TaskConfig) -> Result<(), Status> {
        let handle = nomad::TaskHandle {
            version: 1,
            config: Some(request.clone()),
            ..Default::default()
        };
        let message = nomad::RecoverTaskRequest {
            task_id: String::new(),
            handle: Some(handle),
        };
        self.driver.recover_task(call(message)).await.map(drop)
    }

    async fn inspect(&self, id: &str) -> Result<nomad::InspectTaskResponse, Status> {
        let message = nomad::InspectTaskRequest {
            task_id: id.to_owned(),
        };
        self.driver
            .inspect_task(call(message))
            .await
            .map(Response::into_inner)
    }

    /// The gateway's own id of a task.
    fn task(&self, id: &str) -> switchyard_core::id::TaskId {
        self.driver.task(id).expect("it is there").id
    }
}

fn code(response: &nomad::WaitTaskResponse) -> i32 {
    response
        .result
        .as_ref()
        .expect("it is always set")
        .exit_code
}
