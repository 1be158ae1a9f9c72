//! The WebSocket to a browser: calls with their answers, and the events that come meanwhile.

use std::collections::VecDeque;
use std::time::Duration;

use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

/// Limit for one answer or event.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// The largest message: a picture of a long page.
const MESSAGE_MAX: usize = 64 << 20;

/// Maximum number of events that are kept.
const EVENTS_MAX: usize = 100_000;

#[derive(Debug)]
pub(super) struct Connection {
    runtime: Runtime,
    socket: WebSocketStream<TcpStream>,
    calls: u64,
    events: VecDeque<BrowserEvent>,
}

#[derive(Debug)]
struct BrowserEvent {
    session: String,
    method: String,
    params: Value,
}

// === impl Connection ===

impl Connection {
    pub(super) fn open(port: u16, path: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be made");
        let connect = async {
            let stream = TcpStream::connect(("127.0.0.1", port))
                .await
                .expect("the browser listens");
            let limits = WebSocketConfig::default()
                .max_message_size(Some(MESSAGE_MAX))
                .max_frame_size(Some(MESSAGE_MAX));
            let url = format!("ws://127.0.0.1:{port}{path}");
            let connected = client_async_with_config(url, stream, Some(limits)).await;
            connected.expect("the browser speaks WebSocket").0
        };
        let socket = runtime
            .block_on(async { timeout(ANSWER_LIMIT, connect).await })
            .expect("the browser answers in time");
        Self {
            runtime,
            socket,
            calls: 0,
            events: VecDeque::new(),
        }
    }

    /// Calls a method, of the browser itself if the session is empty.
    #[track_caller]
    pub(super) fn call(&mut self, session: &str, method: &str, params: &Value) -> Value {
        self.calls += 1;
        let id = self.calls;
        let mut call = json!({ "id": id, "method": method, "params": params });
        if !session.is_empty() {
            call["sessionId"] = json!(session);
        }
        let text = Message::text(call.to_string());
        let sent = self
            .runtime
            .block_on(async { timeout(ANSWER_LIMIT, self.socket.send(text)).await });
        sent.unwrap_or_else(|_| panic!("{method} cannot be sent in time"))
            .expect("the browser reads");
        loop {
            let message = self.receive(method);
            if message["id"] == json!(id) {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.keep(message);
        }
    }

    /// Forgets events of this kind that have come.
    pub(super) fn forget_event(&mut self, session: &str, method: &str) {
        self.events
            .retain(|event| event.session != session || event.method != method);
    }

    /// Waits for an event of this kind, which may have come already.
    #[track_caller]
    pub(super) fn wait_for_event(&mut self, session: &str, method: &str) {
        while self.events(session, method).next().is_none() {
            let message = self.receive(method);
            self.keep(message);
        }
    }

    /// The events of this kind.
    pub(super) fn events(&self, session: &str, method: &str) -> impl Iterator<Item = &Value> {
        let wanted = self
            .events
            .iter()
            .filter(move |event| event.session == session && event.method == method);
        wanted.map(|event| &event.params)
    }

    fn keep(&mut self, message: Value) {
        let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
        let session = text("sessionId");
        let method = text("method");
        self.events.push_back(BrowserEvent {
            session,
            method,
            params: message["params"].clone(),
        });
        if self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }

    #[track_caller]
    fn receive(&mut self, what: &str) -> Value {
        loop {
            let next = self
                .runtime
                .block_on(async { timeout(ANSWER_LIMIT, self.socket.next()).await });
            let next =
                next.unwrap_or_else(|_| panic!("{what} was not answered within {ANSWER_LIMIT:?}"));
            let message = next
                .expect("the browser continues")
                .expect("the browser speaks WebSocket");
            if let Message::Text(text) = message {
                return serde_json::from_str(&text).expect("the browser speaks JSON");
            }
        }
    }
}
