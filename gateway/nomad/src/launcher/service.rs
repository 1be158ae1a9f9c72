//! The services for the agent: a few calls are answered here, with or without the daemon; all others are
//! forwarded unchanged.

use std::convert::Infallible;
use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::codegen::{Service, http};

use super::calls::{Call, ResponseFuture, boxed, refuse};
use super::exit_deadline::ExitDeadline;
use super::forward;
use super::launch::{Launch, Role};
use super::link::Link;
use super::local::LocalServices;
use super::routing::{CallTarget, DaemonCall, target_of};

/// The services of a plugin.
#[derive(Debug, Clone)]
pub(super) struct PluginService {
    role: Role,
    local: LocalServices,
    link: Link,
}

// === impl PluginService ===

impl PluginService {
    pub(super) fn new(launch: &Launch, link: Link, ending: ExitDeadline) -> Self {
        Self {
            role: launch.role,
            local: LocalServices::new(launch, link.clone(), ending),
            link,
        }
    }
}

impl Service<Call> for PluginService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> ResponseFuture {
        match target_of(self.role, call.uri().path()) {
            CallTarget::Local(known) => self.local.handle(known, call),
            CallTarget::Daemon(DaemonCall::Recovery) => {
                boxed(forward::recovery(self.link.clone(), call))
            }
            CallTarget::Daemon(DaemonCall::Start) => boxed(forward::start(self.link.clone(), call)),
            CallTarget::Daemon(DaemonCall::Repeated) => {
                boxed(forward::repeated(self.link.clone(), call))
            }
            CallTarget::Daemon(DaemonCall::Once) => boxed(forward::once(self.link.clone(), call)),
            CallTarget::Unknown => {
                let why = format!("{} is not served", call.uri().path());
                let status = crate::status::status(&switchyard_core::Error::unimplemented(why));
                boxed(std::future::ready(refuse(status)))
            }
        }
    }
}
