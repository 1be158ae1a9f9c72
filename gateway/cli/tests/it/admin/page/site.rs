//! The page of a node, and its answers.

use super::*;

/// The page as browsers reach it, and the unix socket.
pub(super) struct Site {
    pub(super) network: Router,
    pub(super) local: Router,
    pub(super) node: TestNode,
}

/// An answer.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Site {
    /// Creates the site of a node with the pod `shop/web`, the task `jobs/train`, and a part that has failed.
    pub(super) async fn new() -> Self {
        let node = TestNode::new().await;
        node.sandbox(pod()).await;
        node.run(endless(Owner::Nomad, "jobs/train")).await;
        node.change_status(|status| status.network = broken());
        node.use_network().await;
        Self::of(node)
    }

    pub(super) fn of(node: TestNode) -> Self {
        let admin = node.pages(ContainerMetrics::Local);
        admin.set_address("127.0.0.1:9640".parse().unwrap());
        Self {
            network: admin.router(Reach::Network),
            local: admin.router(Reach::Local),
            node,
        }
    }

    pub(super) async fn send(&self, request: Request<Body>) -> Answer {
        let answer = self.network.clone().oneshot(request).await.unwrap();
        let (parts, body) = answer.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap().to_vec();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: String::from_utf8(body).unwrap(),
        }
    }

    pub(super) async fn ask(&self, method: Method, path: &str, cookie: &str) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "localhost:9640");
        self.send(request.header(COOKIE, cookie).body(Body::empty()).unwrap())
            .await
    }

    pub(super) async fn get(&self, path: &str, cookie: &str) -> Answer {
        self.ask(Method::GET, path, cookie).await
    }

    /// Asks for a link as this user.
    pub(super) async fn link(&self, uid: u32) -> Result<String, StatusCode> {
        let caller = Caller {
            listener: "admin socket",
            uid: Some(uid),
            pid: None,
        };
        let request = Request::post("/v1/page").body(Body::empty()).unwrap();
        let answer = caller
            .scope(self.local.clone().oneshot(request))
            .await
            .unwrap();
        let status = answer.status();
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        if status != StatusCode::OK {
            return Err(status);
        }
        let link: PageLinkView = serde_json::from_slice(&body).unwrap();
        assert_eq!((link.valid_seconds, link.is_loopback), (60, true));
        Ok(link
            .url
            .strip_prefix("http://127.0.0.1:9640")
            .unwrap()
            .to_owned())
    }

    /// Opens a session, and returns its cookie.
    pub(super) async fn open(&self) -> String {
        let answer = self.get(&self.link(0).await.unwrap(), "").await;
        assert_eq!(
            (answer.status, answer.headers[REFRESH].as_bytes()),
            (StatusCode::OK, &b"0; url=/"[..])
        );
        let cookie = answer.headers[SET_COOKIE].to_str().unwrap().to_owned();
        for attribute in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
            assert!(cookie.split("; ").any(|part| part == attribute), "{cookie}");
        }
        assert!(cookie.starts_with("switchyard-"), "{cookie}");
        cookie.split(';').next().unwrap().to_owned()
    }
}
