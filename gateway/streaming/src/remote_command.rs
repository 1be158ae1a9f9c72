//! Exec and attach: the streams of one process, over any transport.

use std::num::NonZeroU16;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::channel::{Inbound, Outbound};
use crate::copy::{CopyError, inward, outward, text};
use crate::ends::{Input, Output};
use crate::resize::Sizes;
use crate::session::{Command, Control, HANG_UP, Outcome, Process, Refusal, Size, Streams};
use crate::spdy::Incoming;
use crate::status::{Form, status};

/// The negotiated version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u8);

/// The streams of a client, all of them open.
#[derive(Debug)]
pub(crate) struct CommandStreams {
    pub(crate) error: Outbound,
    pub(crate) stdin: Option<Inbound>,
    pub(crate) stdout: Option<Outbound>,
    pub(crate) stderr: Option<Outbound>,
    pub(crate) resize: Option<Inbound>,
    /// The unused directions of the streams; they are ended with the session.
    pub(crate) idle: Vec<Outbound>,
}

// === impl Version ===

impl Version {
    /// The format of the exit status.
    pub(crate) fn form(self) -> Form {
        if self >= Self(4) {
            Form::Json
        } else {
            Form::Plain
        }
    }

    /// Returns whether clients with a terminal send its size.
    pub(crate) fn resizes(self) -> bool {
        self >= Self(3)
    }
}

/// Waits until the client has opened all streams of its session. `None` if it takes too long, or disconnects.
pub(crate) async fn collect(
    mut incoming: mpsc::Receiver<Incoming>,
    wanted: Streams,
    version: Version,
    limit: Duration,
    end: &CancellationToken,
) -> Option<CommandStreams> {
    let resizes = wanted.tty && version.resizes();
    let mut error = None;
    let mut stdin = None;
    let mut stdout = None;
    let mut stderr = None;
    let mut resize = None;
    let mut idle = Vec::new();
    let all = async {
        loop {
            let whole = error.is_some()
                && stdin.is_some() == wanted.stdin
                && stdout.is_some() == wanted.stdout
                && stderr.is_some() == wanted.stderr
                && resize.is_some() == resizes;
            if whole {
                return Some(());
            }
            let mut stream = incoming.recv().await?;
            let kind = stream
                .headers
                .iter()
                .find(|(name, _)| name == "streamtype")
                .map(|(_, kind)| kind.as_str());
            match kind {
                Some("error") if error.is_none() => error = Some(stream.outbound),
                Some("stdout") if wanted.stdout && stdout.is_none() => {
                    stdout = Some(stream.outbound)
                }
                Some("stderr") if wanted.stderr && stderr.is_none() => {
                    stderr = Some(stream.outbound)
                }
                Some("stdin") if wanted.stdin && stdin.is_none() => {
                    stdin = Some(stream.inbound);
                    idle.push(stream.outbound);
                }
                Some("resize") if resizes && resize.is_none() => {
                    resize = Some(stream.inbound);
                    idle.push(stream.outbound);
                }
                Some(_) | None => stream.outbound.reset().await,
            }
        }
    };
    tokio::select! {
        all = timeout(limit, all) => all.ok()??,
        () = end.cancelled() => return None,
    }
    // Further streams are not part of the session.
    incoming.close();
    while let Ok(mut stream) = incoming.try_recv() {
        stream.outbound.reset().await;
    }
    Some(CommandStreams {
        error: error?,
        stdin,
        stdout,
        stderr,
        resize,
        idle,
    })
}

/// Opens the process, and copies its streams until it has exited or `end` is cancelled.
pub(crate) async fn run(
    channels: CommandStreams,
    command: Box<dyn Command>,
    form: Form,
    end: &CancellationToken,
) {
    let CommandStreams {
        mut error,
        stdin,
        stdout,
        stderr,
        resize,
        idle,
    } = channels;
    let Process {
        stdin: input,
        stdout: output,
        stderr: errors,
        control,
    } = match command.open().await {
        Ok(process) => process,
        Err(refusal) => {
            for mut outbound in stdout.into_iter().chain(stderr).chain(idle) {
                outbound.finish().await;
            }
            text(&mut error, status(&Outcome::Failed(refusal), form)).await;
            return error.finish().await;
        }
    };
    let cut = CancellationToken::new();
    let outputs = async {
        tokio::join!(
            carry_output(output, stdout, "stdout", &cut),
            carry_output(errors, stderr, "stderr", &cut)
        );
    };
    let ended = exit_and_outputs(&*control, outputs, &cut);
    let inputs = async {
        tokio::join!(carry_input(stdin, input), resizes(resize, &*control));
        // The inputs may end long before the process, which then continues.
        std::future::pending::<()>().await;
    };
    // Biased: an exit that is known is reported, also if the connection ends at the same time.
    let outcome = tokio::select! {
        biased;
        outcome = ended => outcome,
        () = inputs => unreachable!("the futures of inputs never complete"),
        () = end.cancelled() => {
            // A client takes an error stream without a status for success.
            let report = async {
                let refusal = Refusal::Failed("the session was ended before the exit was known".to_owned());
                text(&mut error, status(&Outcome::Failed(refusal), form)).await;
                error.finish().await;
            };
            let ending = async { tokio::join!(report, control.hang_up()) };
            if timeout(HANG_UP, ending).await.is_err() {
                debug!("the process of a session did not handle the hang-up of its client in time");
            }
            return;
        }
    };
    for mut outbound in idle {
        outbound.finish().await;
    }
    text(&mut error, status(&outcome, form)).await;
    error.finish().await;
}

/// Waits for the exit of the process, and for the end of its outputs, which `cut` hastens.
async fn exit_and_outputs(
    control: &dyn Control,
    outputs: impl Future<Output = ()>,
    cut: &CancellationToken,
) -> Outcome {
    let mut outputs = pin!(outputs);
    let mut exit = pin!(control.wait());
    let outcome = tokio::select! {
        outcome = &mut exit => outcome,
        () = &mut outputs => return exit.await,
    };
    if matches!(outcome, Outcome::Exited(_)) {
        tokio::select! {
            () = &mut outputs => return outcome,
            () = control.cut_outputs() => cut.cancel(),
        }
    }
    outputs.await;
    outcome
}

/// Copies an output to the client, and ends the stream with it.
async fn carry_output(
    output: Option<Output>,
    outbound: Option<Outbound>,
    name: &'static str,
    cut: &CancellationToken,
) {
    let Some(mut outbound) = outbound else { return };
    if let Some(output) = output
        && let Err(CopyError::Io(error)) = outward(output, &mut outbound, cut.cancelled()).await
    {
        debug!(%error, stream = name, "output of a process cannot be read");
    }
    outbound.finish().await;
}

/// Copies the client's input to the process. The input is not ended if the client disconnects without ending
/// its stream.
async fn carry_input(inbound: Option<Inbound>, input: Option<Input>) {
    let (Some(mut inbound), Some(mut input)) = (inbound, input) else {
        return;
    };
    if let Err(CopyError::Io(error)) = inward(&mut inbound, &mut input).await {
        debug!(%error, "input of a process cannot be written");
    }
}

/// Applies the received sizes; of those that are received while one is being set, only the last.
async fn resizes(inbound: Option<Inbound>, control: &dyn Control) {
    let Some(mut inbound) = inbound else { return };
    let first = Size {
        width: NonZeroU16::MIN,
        height: NonZeroU16::MIN,
    };
    let (sender, mut sizes) = watch::channel(first);
    let receive = async move {
        let mut parser = Sizes::default();
        while let Ok(Some(piece)) = inbound.next().await {
            inbound.consumed(piece.bytes.len()).await;
            if let Some(size) = parser.feed(&piece.bytes) {
                sender.send_replace(size);
            }
        }
    };
    let set = async {
        while sizes.changed().await.is_ok() {
            let size = *sizes.borrow_and_update();
            if let Err(refusal) = control.resize(size).await {
                debug!(%refusal, "terminal cannot be resized");
            }
        }
    };
    tokio::join!(receive, set);
}
