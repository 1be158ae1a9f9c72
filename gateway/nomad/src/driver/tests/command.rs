//! Tests of commands in tasks: checks, and commands with a connected client.

use futures::stream;
use nomad::exec_task_streaming_request::{Setup, TerminalSize};
use switchyard_core::backend::CUT_PATIENCE;
use switchyard_fake::LeftOutput;
use tokio::sync::mpsc;

use super::*;

type Asked = nomad::ExecTaskStreamingRequest;
type Said = nomad::ExecTaskStreamingResponse;

impl DriverFixture {
    async fn exec(
        &self,
        id: &str,
        script: &str,
        seconds: i64,
    ) -> Result<nomad::ExecTaskResponse, Status> {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let timeout = Some(prost_types::Duration { seconds, nanos: 0 });
        let message = nomad::ExecTaskRequest {
            task_id: id.to_owned(),
            command,
            timeout,
        };
        self.driver
            .exec_task(call(message))
            .await
            .map(Response::into_inner)
    }

    async fn stream(
        &self,
        asked: mpsc::UnboundedReceiver<Result<Asked, Status>>,
    ) -> Result<DriverStream<Said>, Status> {
        let metadata = call(()).metadata().clone();
        let asked = stream::unfold(asked, async |mut asked| {
            asked.recv().await.map(|sent| (sent, asked))
        });
        self.driver.exec_streaming(&metadata, Box::pin(asked)).await
    }

    /// A command with a client that sends these messages after the setup.
    async fn session(&self, id: &str, script: &str, tty: bool, sent: Vec<Asked>) -> Heard {
        let (tell, asked) = mpsc::unbounded_channel();
        tell.send(Ok(setup(id, script, tty))).expect("it listens");
        sent.into_iter()
            .for_each(|sent| tell.send(Ok(sent)).expect("it listens"));
        let answers = self.stream(asked).await.expect("it runs");
        // The client does not close its half.
        let received = Heard::all(answers).await;
        drop(tell);
        received
    }
}

fn setup(id: &str, script: &str, tty: bool) -> Asked {
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    Asked {
        setup: Some(Setup {
            task_id: id.to_owned(),
            command,
            tty,
        }),
        ..Default::default()
    }
}

fn input(data: &[u8], close: bool) -> Asked {
    let operation = nomad::ExecTaskStreamingIoOperation {
        data: data.to_vec(),
        close,
    };
    Asked {
        stdin: Some(operation),
        ..Default::default()
    }
}

fn size(height: i32, width: i32) -> Asked {
    Asked {
        tty_size: Some(TerminalSize { height, width }),
        ..Default::default()
    }
}

/// All that a client received, in the order that agents require.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    code: Option<i32>,
}

impl Heard {
    async fn all(mut answers: DriverStream<Said>) -> Self {
        let mut received = Self::default();
        let mut open = [true, true];
        while let Some(sent) = answers.next().await {
            let sent = sent.expect("it is no error");
            assert_eq!(received.code, None, "the exit code comes last");
            if let Some(output) = sent.stdout {
                assert!(
                    open[0] && output.data.is_empty() == output.close,
                    "{output:?}"
                );
                open[0] = !output.close;
                received.stdout.extend(output.data);
            }
            if let Some(output) = sent.stderr {
                assert!(
                    open[1] && output.data.is_empty() == output.close,
                    "{output:?}"
                );
                open[1] = !output.close;
                received.stderr.extend(output.data);
            }
            if sent.exited {
                assert_eq!(open, [false, false], "both streams are closed first");
                received.code = Some(sent.result.expect("it comes with the end").exit_code);
            }
        }
        received
    }
}

#[tokio::test]
async fn exec_check_returns_code_and_last_output() {
    let fixture = fixture().await;
    let id = fixture.running(&["serve"]).await;
    let output = fixture
        .exec(&id, "echo well; echo no >&2; exit 2", 5)
        .await
        .expect("it runs");
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (&b"well\n"[..], &b"no\n"[..])
    );
    assert_eq!(output.result.expect("it is always set").exit_code, 2);
    let output = fixture
        .exec(&id, "head -c 100000 /dev/zero; echo end", 5)
        .await
        .expect("it runs");
    assert_eq!(output.stdout.len(), 4096);
    assert!(output.stdout.ends_with(b"end\n"));
}

#[tokio::test(start_paused = true)]
async fn exec_check_is_killed_at_its_timeout() {
    let fixture = fixture().await;
    let id = fixture.running(&["serve"]).await;
    let late = fixture
        .exec(&id, "sleep 60", 5)
        .await
        .expect_err("it takes too long");
    assert!(late.message().contains("5s"), "{late:?}");
    assert_eq!(fixture.fake.processes(), 0);
    // A timeout of 0 means none.
    let late = fixture
        .exec(&id, "while true; do true; done", 0)
        .await
        .expect_err("it never ends");
    assert!(late.message().contains("600s"), "{late:?}");
}

#[tokio::test]
async fn exec_in_a_task_that_does_not_run_is_rejected() {
    let fixture = fixture().await;
    assert_eq!(
        fixture
            .exec("no/such/00000000", "true", 5)
            .await
            .expect_err("there is no task")
            .code(),
        Code::NotFound
    );
    let id = fixture.running(&["true"]).await;
    fixture.wait(&id).await.expect("it ends");
    assert_eq!(
        fixture
            .exec(&id, "true", 5)
            .await
            .expect_err("it has ended")
            .code(),
        Code::FailedPrecondition
    );
}

#[tokio::test]
async fn exec_without_tty_sends_streams_then_eofs_then_code() {
    let fixture = fixture().await;
    let id = fixture.running(&["serve"]).await;
    let received = fixture
        .session(&id, "echo out; echo err >&2; exit 9", false, vec![])
        .await;
    assert_eq!(
        received,
        Heard {
            stdout: b"out\n".into(),
            stderr: b"err\n".into(),
            code: Some(9)
        }
    );
}

#[tokio::test]
async fn exec_with_tty_sends_all_on_stdout() {
    let fixture = fixture().await;
    let id = fixture.running(&["serve"]).await;
    let received = fixture
        .session(&id, "echo out; echo err >&2; exit 9", true, vec![])
        .await;
    assert_eq!(
        (received.stdout, received.stderr, received.code),
        (b"out\nerr\n".to_vec(), vec![], Some(9))
    );
}

#[tokio::test]
async fn exec_stdin_reaches_eof_despite_heartbeats_and_resizes() {
    let fixture = fixture().await;
    let id = fixture.running(&["serve"]).await;
    let sent = vec![
        size(24, 80),
        input(b"one ", false),
        Asked::default(),
        size(-1, 1 << 20),
        size(50, 100),
        input(b"two", false),
        input(b"", true),
        input(b"too late", false),
    ];
    let received = fixture.session(&id, "cat", false, sent).await;
    assert_eq!(
        received,
        Heard {
            stdout: b"one two".into(),
            stderr: vec![],
            code: Some(0)
        }
    );
}

#[tokio::test]
async fn input_does_not_wait_for_resizes_of_which_only_the_last_is_carried_out() {
    const LAST: i32 = 2000;
    let fixture = fixture().await;
    let id = fixture.running(&["serve"]).await;
    let hold = fixture.fake.hold(Method::ResizeExec);
    let (tell, asked) = mpsc::unbounded_channel();
    let messages = std::iter::once(setup(&id, "cat", true))
        .chain((1..=LAST).map(|side| size(side, side + 1)))
        .chain([input(b"typed", false)]);
    messages.for_each(|sent| tell.send(Ok(sent)).expect("it listens"));
    let mut answers = fixture.stream(asked).await.expect("it runs");
    let mut typed = Vec::new();
    // No size has been set so far.
    while typed != b"typed" {
        let answer = answers
            .next()
            .await
            .expect("it runs")
            .expect("it is no error");
        typed.extend(answer.stdout.expect("it writes").data);
    }
    hold.arrived(1).await;
    hold.release();
    let resizes = || {
        let calls = fixture
            .fake
            .calls()
            .into_iter()
            .filter(|call| call.method == Method::ResizeExec);
        calls.map(|call| call.object).collect::<Vec<_>>()
    };
    while !resizes()
        .last()
        .expect("one was held")
        .ends_with(" 2001x2000")
    {
        tokio::task::yield_now().await;
    }
    assert!(resizes().len() <= 2, "{:?}", resizes());
    tell.send(Ok(input(b"", true))).expect("it listens");
    assert_eq!(Heard::all(answers).await.code, Some(0));
}

#[tokio::test]
async fn large_exec_output_is_complete() {
    let fixture = fixture().await;
    let id = fixture.running(&["serve"]).await;
    let received = fixture
        .session(&id, "head -c 3000000 /dev/zero; echo end", false, vec![])
        .await;
    assert_eq!((received.stdout.len(), received.code), (3_000_004, Some(0)));
}

#[tokio::test]
async fn children_holding_the_output_do_not_delay_the_exit() {
    let fixture = fixture().await;
    let id = fixture.running(&["serve"]).await;
    for tty in [true, false] {
        let received = fixture
            .session(&id, "echo out; sleep 1000 & exit 5", tty, vec![])
            .await;
        assert_eq!(
            (received.stdout.as_slice(), received.code),
            (&b"out\n"[..], Some(5))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn exit_code_comes_although_the_runtime_does_not_close_the_output() {
    let fixture = fixture().await;
    let id = fixture.running(&["serve"]).await;
    fixture.fake.set_left_output(LeftOutput::Open);
    for tty in [true, false] {
        let begun = tokio::time::Instant::now();
        let session = fixture.session(&id, "echo out; sleep 1000 & exit 5", tty, vec![]);
        let received = tokio::time::timeout(Duration::from_secs(60), session)
            .await
            .expect("it ends");
        assert_eq!(
            (received.stdout.as_slice(), received.code),
            (&b"out\n"[..], Some(5))
        );
        assert_eq!(begun.elapsed().as_secs(), CUT_PATIENCE.as_secs());
    }
}

#[tokio::test]
async fn missing_command_exits_with_127() {
    let fixture = fixture().await;
    let id = fixture.running(&["serve"]).await;
    let (tell, asked) = mpsc::unbounded_channel();
    let command = vec!["/no/such/program".to_owned()];
    let setup = Setup {
        task_id: id,
        command,
        tty: false,
    };
    tell.send(Ok(Asked {
        setup: Some(setup),
        ..Default::default()
    }))
    .expect("it listens");
    let received = Heard::all(fixture.stream(asked).await.expect("it is answered")).await;
    assert_eq!(received.code, Some(127));
    assert!(!received.stderr.is_empty());
}

#[tokio::test]
async fn exec_is_killed_with_its_client() {
    for by_reset in [true, false] {
        let fixture = fixture().await;
        let id = fixture.running(&["serve"]).await;
        let (tell, asked) = mpsc::unbounded_channel();
        tell.send(Ok(setup(&id, "echo ready; cat", false)))
            .expect("it listens");
        let mut answers = fixture.stream(asked).await.expect("it runs");
        answers
            .next()
            .await
            .expect("it writes")
            .expect("it is no error");
        assert_eq!(fixture.fake.processes(), 1);
        if by_reset {
            tell.send(Err(Status::cancelled("the client has gone")))
                .expect("it listens");
        } else {
            drop(answers);
        }
        while fixture.fake.processes() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn half_closed_exec_client_still_gets_the_answer() {
    let fixture = fixture().await;
    let id = fixture.running(&["serve"]).await;
    let (tell, asked) = mpsc::unbounded_channel();
    tell.send(Ok(setup(&id, "sleep 0.01; echo out", false)))
        .expect("it listens");
    drop(tell);
    let received = Heard::all(fixture.stream(asked).await.expect("it runs")).await;
    assert_eq!(
        (received.stdout.as_slice(), received.code),
        (&b"out\n"[..], Some(0))
    );
}

#[tokio::test]
async fn exec_stream_must_begin_with_setup() {
    let fixture = fixture().await;
    let refused = async |first: Asked| {
        let (tell, asked) = mpsc::unbounded_channel();
        tell.send(Ok(first)).expect("it listens");
        fixture.stream(asked).await.err().expect("it is refused")
    };
    let unsaid = refused(input(b"x", false)).await;
    assert_eq!(
        (unsaid.code(), unsaid.message()),
        (
            Code::InvalidArgument,
            "first message should always be setup"
        )
    );
    assert_eq!(
        refused(setup("no/such/00000000", "true", false))
            .await
            .code(),
        Code::NotFound
    );
    let id = fixture.running(&["serve"]).await;
    let nothing = Setup {
        task_id: id,
        command: vec![],
        tty: false,
    };
    let refused = refused(Asked {
        setup: Some(nothing),
        ..Default::default()
    })
    .await;
    assert_eq!(refused.code(), Code::InvalidArgument);
}
