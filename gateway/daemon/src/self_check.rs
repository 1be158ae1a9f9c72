//! The check that the daemon's own servers answer, for systemd's watchdog.
//!
//! Each enabled socket receives a call that needs neither recovery nor containerd, through the server's own
//! accept loop, by a connection that counts towards no limit. So the check fails only if the daemon itself
//! hangs; an outage of containerd, or clients who use up the limits, do not fail it.

use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use http::uri::PathAndQuery;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use switchyard_linux::report;
use switchyard_socket::listener::OwnConnector;
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

/// The questions to all servers.
#[derive(Debug, Default)]
pub struct SelfCheck {
    questions: Vec<Question>,
}

/// The call that checks one server.
#[derive(Debug, Clone)]
pub struct Question {
    name: &'static str,
    connector: OwnConnector,
    kind: QuestionKind,
}

#[derive(Debug, Clone, Copy)]
enum QuestionKind {
    /// A page that must be answered with 200.
    Page(&'static str),
    /// A unary RPC with an empty request, which must succeed.
    Rpc(&'static str),
}

/// The reason why a server counts as dead.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The connection was refused or broke.
    #[error("{name} does not accept a connection of the daemon itself: {why}")]
    Connection {
        /// The server.
        name: &'static str,
        /// The cause.
        why: String,
    },
    /// The answer was another one.
    #[error("{name} answered {what} with {answer}")]
    Answer {
        /// The server.
        name: &'static str,
        /// The page or RPC.
        what: &'static str,
        /// The status of the answer.
        answer: String,
    },
    /// There was no answer in time.
    #[error("{name} did not answer within {limit:?}")]
    Deadline {
        /// The server.
        name: &'static str,
        /// The time it had.
        limit: Duration,
    },
}

// === impl Question ===

impl Question {
    /// Asks an HTTP server for a page.
    #[must_use]
    pub const fn page(name: &'static str, connector: OwnConnector, path: &'static str) -> Self {
        Self {
            name,
            connector,
            kind: QuestionKind::Page(path),
        }
    }

    /// Asks a gRPC server, by a path such as `/runtime.v1.RuntimeService/Version`.
    #[must_use]
    pub const fn rpc(name: &'static str, connector: OwnConnector, path: &'static str) -> Self {
        Self {
            name,
            connector,
            kind: QuestionKind::Rpc(path),
        }
    }

    async fn ask(&self) -> Result<(), CheckError> {
        match self.kind {
            QuestionKind::Page(path) => self.ask_page(path).await,
            QuestionKind::Rpc(path) => self.ask_rpc(path).await,
        }
    }

    async fn ask_page(&self, path: &'static str) -> Result<(), CheckError> {
        let broken = |error: &dyn std::error::Error| self.broken(error);
        let stream = self
            .connector
            .connect()
            .await
            .map_err(|error| broken(&error))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| broken(&error))?;
        let request = Request::get(path)
            .header(http::header::HOST, "localhost")
            .body(Empty::<Bytes>::new())
            .expect("the path is a constant");
        let exchange = async {
            let response = sender.send_request(request).await?;
            let status = response.status();
            response.into_body().collect().await?;
            Ok::<_, hyper::Error>(status)
        };
        let status = tokio::select! {
            status = exchange => status.map_err(|error| broken(&error))?,
            ended = connection => {
                let why = ended.map_or_else(|error| report(&error), |()| "it was closed".to_owned());
                return Err(CheckError::Connection { name: self.name, why });
            }
        };
        if status == StatusCode::OK {
            return Ok(());
        }
        Err(CheckError::Answer {
            name: self.name,
            what: path,
            answer: status.to_string(),
        })
    }

    async fn ask_rpc(&self, path: &'static str) -> Result<(), CheckError> {
        let connector = self.connector.clone();
        let connect = tower::service_fn(move |_: http::Uri| {
            let connector = connector.clone();
            async move { connector.connect().await.map(TokioIo::new) }
        });
        // The address is never resolved.
        let channel = Endpoint::from_static("http://localhost")
            .connect_with_connector(connect)
            .await;
        let mut grpc = Grpc::new(channel.map_err(|error| self.broken(&error))?);
        grpc.ready().await.map_err(|error| self.broken(&error))?;
        let codec = ProstCodec::<(), ()>::default();
        match grpc
            .unary(
                tonic::Request::new(()),
                PathAndQuery::from_static(path),
                codec,
            )
            .await
        {
            Ok(_) => Ok(()),
            Err(status) => {
                let answer = format!("{:?}: {}", status.code(), status.message());
                Err(CheckError::Answer {
                    name: self.name,
                    what: path,
                    answer,
                })
            }
        }
    }

    fn broken(&self, error: &dyn std::error::Error) -> CheckError {
        CheckError::Connection {
            name: self.name,
            why: report(error),
        }
    }
}

// === impl SelfCheck ===

impl SelfCheck {
    /// A check of these servers.
    #[must_use]
    pub const fn new(questions: Vec<Question>) -> Self {
        Self { questions }
    }

    /// Asks all servers at the same time; each has `limit` to answer. Cancel-safe.
    ///
    /// # Errors
    /// The first server that counts as dead.
    pub async fn run(&self, limit: Duration) -> Result<(), CheckError> {
        let answers = join_all(self.questions.iter().map(async |question| {
            let answer = tokio::time::timeout(limit, question.ask()).await;
            answer.unwrap_or(Err(CheckError::Deadline {
                name: question.name,
                limit,
            }))
        }));
        answers.await.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use switchyard_socket::listener::{OwnConnections, own_connections};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    /// Serves pages on the connections of the daemon itself.
    async fn serve(mut own: OwnConnections, router: Router) {
        loop {
            let stream = TokioIo::new(own.next().await);
            let service = hyper_util::service::TowerToHyperService::new(router.clone());
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(stream, service),
            );
        }
    }

    #[tokio::test]
    async fn server_that_answers_is_alive() {
        let (connector, own) = own_connections();
        let router = Router::new().route("/livez", get(async || "ok"));
        tokio::spawn(serve(own, router));
        let check = SelfCheck::new(vec![Question::page("admin", connector.clone(), "/livez")]);
        for _ in 0..3 {
            check.run(LIMIT).await.unwrap();
        }
        let other = SelfCheck::new(vec![Question::page("admin", connector, "/nothing")]);
        let error = other.run(LIMIT).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "admin answered /nothing with 404 Not Found"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_accepts_or_answers_nothing_is_dead() {
        // Nobody accepts.
        let (connector, own) = own_connections();
        let check = SelfCheck::new(vec![Question::rpc(
            "cri",
            connector,
            "/runtime.v1.RuntimeService/Version",
        )]);
        for _ in 0..3 {
            let error = check.run(LIMIT).await.unwrap_err();
            assert!(
                matches!(error, CheckError::Deadline { name: "cri", .. }),
                "{error}"
            );
        }
        drop(own);
        let error = check.run(LIMIT).await.unwrap_err();
        assert!(matches!(error, CheckError::Connection { .. }), "{error}");
        // The handler hangs, of one server among two.
        let (hanging, own) = own_connections();
        let router =
            Router::new().route("/livez", get(async || std::future::pending::<&str>().await));
        tokio::spawn(serve(own, router));
        let (well, own) = own_connections();
        tokio::spawn(serve(
            own,
            Router::new().route("/livez", get(async || "ok")),
        ));
        let check = SelfCheck::new(vec![
            Question::page("well", well, "/livez"),
            Question::page("hanging", hanging, "/livez"),
        ]);
        let error = check.run(LIMIT).await.unwrap_err();
        assert_eq!(error.to_string(), "hanging did not answer within 5s");
    }
}
