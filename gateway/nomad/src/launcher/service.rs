//! The services for the agent: a few calls are answered here, with or without the daemon; all others are
//! forwarded unchanged.

use std::convert::Infallible;
use std::task::{Context, Poll};

use switchyard_linux::process::ProcessId;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::server::UdsConnectInfo;
use tower::ServiceExt;

use super::calls::{Call, ResponseFuture, boxed, refuse};
use super::delayed_error::{DelayedErrorBody, ERROR_DELAY, broken};
use super::exit_deadline::ExitDeadline;
use super::launch::{Launch, Role};
use super::link::Link;
use super::local::LocalServices;
use super::routing::{CallTarget, target_of};
use crate::session::{CALLER_KEY, SESSION_KEY};

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
            CallTarget::Daemon => boxed(forward(self.link.clone(), call)),
            CallTarget::Unknown => {
                let why = format!("{} is not served", call.uri().path());
                let status = crate::status::status(&switchyard_core::Error::unimplemented(why));
                boxed(std::future::ready(refuse(status)))
            }
        }
    }
}

/// Forwards a call with its streaming body, and the answer with its trailers. Waits while the daemon is not
/// available.
async fn forward(link: Link, call: Call) -> http::Response<Body> {
    let up = link.session().await;
    let (mut head, body) = call.into_parts();
    let session: &[u8] = up.session.as_bytes();
    let session = http::HeaderValue::from_bytes(session).expect("what is metadata is a header");
    head.headers.insert(SESSION_KEY, session);
    head.headers.remove(CALLER_KEY);
    if let Some(caller) = caller(&head.extensions) {
        head.headers.insert(CALLER_KEY, caller);
    }
    match up
        .channel
        .oneshot(http::Request::from_parts(head, body))
        .await
    {
        Ok(response) => response.map(|body| Body::new(DelayedErrorBody::new(body))),
        Err(error) => {
            tracing::debug!(%error, "a forwarded call was interrupted");
            tokio::time::sleep(ERROR_DELAY).await;
            refuse(broken())
        }
    }
}

/// The process at the other end of the connection; it changes with a restart of the agent.
fn caller(extensions: &http::Extensions) -> Option<http::HeaderValue> {
    let pid = extensions.get::<UdsConnectInfo>()?.peer_cred?.pid()?;
    http::HeaderValue::try_from(ProcessId::of(pid)?.to_string()).ok()
}

#[cfg(test)]
mod tests {
    use tonic::transport::server::Connected;

    use super::*;

    #[tokio::test]
    async fn calling_process_is_reported_to_the_daemon() {
        let (ours, _theirs) = tokio::net::UnixStream::pair().unwrap();
        let mut extensions = http::Extensions::new();
        assert_eq!(caller(&extensions), None);
        extensions.insert(ours.connect_info());
        let own = ProcessId::of(std::process::id().cast_signed()).unwrap();
        let reported: ProcessId = caller(&extensions)
            .unwrap()
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        assert_eq!(reported, own);
    }
}
