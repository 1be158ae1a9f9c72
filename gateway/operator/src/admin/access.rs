//! Access control of the admin socket: the only place that decides it.
//!
//! The mode of the socket and its listener admit root, the user of the daemon and the members of
//! `admin.socket_group`. Root and the user of the daemon may do everything. Members may read, except what may be
//! secret. The daemon's own connections, of its self-check, only read.

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use nix::unistd::geteuid;
use switchyard_core::operation::Caller;

use super::answers::text;

/// Serves a request that reads, and others for root alone.
pub(super) async fn admit(request: Request, next: Next) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if !reads && let Err(refusal) = demand_root("change something") {
        return *refusal;
    }
    next.run(request).await
}

/// Refuses the current request unless its caller may do what is reserved to root; `what` names that in the
/// refusal.
pub(super) fn demand_root(what: &str) -> Result<(), Box<Response>> {
    let caller = Caller::current();
    if is_root(
        caller.as_ref().and_then(|caller| caller.uid),
        geteuid().as_raw(),
    ) {
        return Ok(());
    }
    let uid = caller.and_then(|caller| caller.uid);
    let who = uid.map_or_else(
        || "you are not known".to_owned(),
        |uid| format!("you are user {uid}"),
    );
    let why = format!(
        "only root may {what}, and {who}: members of admin.socket_group may read, so run this as root\n"
    );
    Err(Box::new(text(StatusCode::FORBIDDEN, why)))
}

/// Returns whether a peer with this user may do everything; `own` is the user of the daemon. A peer with an
/// unknown user may not. Pure.
pub(super) const fn is_root(uid: Option<u32>, own: u32) -> bool {
    match uid {
        Some(uid) => uid == 0 || uid == own,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::middleware::from_fn;
    use axum::routing::any;
    use tower::ServiceExt as _;

    use super::*;

    async fn status(method: Method, uid: Option<u32>) -> StatusCode {
        let router = Router::new()
            .route("/", any(async || "done"))
            .layer(from_fn(admit));
        let request = Request::builder()
            .method(method)
            .uri("/")
            .body(Body::empty())
            .unwrap();
        let caller = Caller {
            listener: "admin socket",
            uid,
            pid: None,
        };
        caller
            .scope(router.oneshot(request))
            .await
            .unwrap()
            .status()
    }

    #[tokio::test]
    async fn members_of_the_group_read_and_root_changes() {
        let own = geteuid().as_raw();
        let member = own + 1000;
        for method in [Method::GET, Method::HEAD] {
            for uid in [Some(0), Some(own), Some(member), None] {
                assert_eq!(
                    status(method.clone(), uid).await,
                    StatusCode::OK,
                    "{method} {uid:?}"
                );
            }
        }
        for method in [
            Method::POST,
            Method::PUT,
            Method::DELETE,
            Method::PATCH,
            Method::OPTIONS,
        ] {
            for uid in [Some(0), Some(own)] {
                assert_eq!(
                    status(method.clone(), uid).await,
                    StatusCode::OK,
                    "{method} {uid:?}"
                );
            }
            for uid in [Some(member), None] {
                assert_eq!(
                    status(method.clone(), uid).await,
                    StatusCode::FORBIDDEN,
                    "{method} {uid:?}"
                );
            }
        }
    }

    #[test]
    fn user_of_the_daemon_counts_as_root() {
        for (uid, own, expected) in [
            (Some(0), 5, true),
            (Some(5), 5, true),
            (Some(6), 5, false),
            (None, 0, false),
        ] {
            assert_eq!(is_root(uid, own), expected, "{uid:?}");
        }
    }
}
