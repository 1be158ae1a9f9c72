//! A logkeeper on its way out refuses what it can no longer do, and loses nothing.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use switchyard_logkeeper::format::Stream;
use switchyard_logkeeper::protocol::{Request, VERSION};
use switchyard_logkeeper::{Client, LogSpec};

use crate::support::{PATIENCE, Site, log, texts};

/// A connection whose client has said Hello.
struct Raw(BufReader<UnixStream>);

impl Raw {
    fn connect(site: &Site) -> Self {
        let stream = UnixStream::connect(&site.config.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    async fn greet(site: &Site) -> Self {
        let mut raw = Self::connect(site);
        let hello = raw.ask(&Request::Hello { version: VERSION }).await;
        assert!(hello.starts_with("{\"ok\""), "{hello}");
        raw
    }

    /// Sends a request and returns the answer, while the keeper in this process runs.
    async fn ask(&mut self, request: &Request) -> String {
        let line = format!("{}\n", serde_json::to_string(request).unwrap());
        self.0.get_mut().write_all(line.as_bytes()).unwrap();
        let stream = self.0.get_ref().try_clone().unwrap();
        let read = tokio::task::spawn_blocking(move || {
            let mut answer = String::new();
            BufReader::new(stream).read_line(&mut answer).unwrap();
            answer
        });
        read.await.unwrap()
    }
}

/// One request of each kind.
fn requests(spec: LogSpec) -> Vec<Request> {
    let id = || spec.id.clone();
    vec![
        Request::Hello { version: VERSION },
        Request::Reopen { id: id() },
        Request::Finish {
            id: id(),
            drain_ms: 0,
        },
        Request::Abandon { id: id() },
        Request::List { after: None },
        Request::Stats,
        Request::Hold { one_call: false },
        Request::Put {
            name: "cri".into(),
            note: String::new(),
        },
        Request::Take { name: "cri".into() },
        Request::Descriptors,
        Request::Release,
        Request::Attach {
            id: id(),
            stream: Stream::Stdout,
            from: None,
        },
        Request::Shutdown,
        Request::Open(spec),
    ]
}

/// Returns whether a logkeeper that is stopping still answers a request: one that needs no container, and
/// leaves nothing that would have to outlast this logkeeper.
const fn is_answered(request: &Request) -> bool {
    match request {
        Request::Hello { .. } | Request::Release | Request::Shutdown => true,
        Request::Open(_)
        | Request::Reopen { .. }
        | Request::Finish { .. }
        | Request::Abandon { .. }
        | Request::List { .. }
        | Request::Stats
        | Request::Hold { .. }
        | Request::Put { .. }
        | Request::Take { .. }
        | Request::Descriptors
        | Request::Attach { .. } => false,
    }
}

#[tokio::test]
async fn logkeeper_on_its_way_out_is_busy_and_loses_no_line() {
    let site = Site::new();
    let keeper = site.start().await;
    let [ending, printing] = ["ending", "printing"].map(|id| site.spec(id));
    let mut of_ending = site.output(&ending);
    let mut of_printing = site.output(&printing);
    site.client.open(&ending).await.unwrap();
    site.client.open(&printing).await.unwrap();
    let mut raw = Raw::greet(&site).await;
    // Its end is waited for, as long as somebody can still print.
    of_ending.out("bye\n");
    let other = Client::new(&site.config.socket);
    let finish = tokio::spawn(async move { other.finish("ending", PATIENCE).await });
    let is_finishing = async || {
        site.client
            .list()
            .await
            .unwrap()
            .iter()
            .any(|entry| entry.finishing)
    };
    while !is_finishing().await {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    site.client.shutdown().await.unwrap();
    while site.config.socket.exists() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    of_printing.out("last\n");
    for request in requests(printing.clone()) {
        let answer = raw.ask(&request).await;
        let is_busy = answer.contains("\"kind\":\"busy\"") && answer.contains("shutting down");
        let expected = if is_answered(&request) {
            answer.starts_with("{\"ok\"")
        } else {
            is_busy
        };
        assert!(expected, "{request:?}: {answer}");
    }
    drop(of_ending);
    keeper.ended().await;
    let keeper = site.start().await;
    finish.await.unwrap().unwrap();
    assert_eq!(texts(log(&ending)), ["stdout F bye"]);
    assert_eq!(
        site.client
            .finish("printing", Duration::ZERO)
            .await
            .unwrap()
            .lines,
        1
    );
    assert_eq!(texts(log(&printing)), ["stdout F last"]);
    keeper.stop().await;
}
