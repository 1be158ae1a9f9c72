//! Answers that a batch of requests still waits for: what a datagram of the kernel changes, without a socket.

use super::decode::{Refusal, Torn, acknowledgement, end_of_dump, messages};
use super::error::NetlinkError;
use super::message::Request;
use super::uapi::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN,
};

/// The most bytes of messages that the answers to one batch may have: some hundred thousand links or routes.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// A message with which the kernel answers a request, apart from its acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// Its type, such as `RTM_NEWLINK`.
    pub kind: u16,
    /// Content after its header: the fixed part of the family, and attributes.
    pub body: Vec<u8>,
}

/// The answers to a batch, as far as they have come.
#[derive(Debug)]
pub(crate) struct Exchange<'a> {
    requests: &'a [Request],
    /// The sequence number of the first request; the others follow it.
    first: u32,
    answers: Vec<Answer>,
    bytes: usize,
    /// True if a message for which no answer was asked has been refused: then others are perhaps not answered.
    is_broken_off: bool,
    /// True if what was read has changed meanwhile.
    pub(crate) is_interrupted: bool,
}

/// Answer of the kernel to one request.
#[derive(Debug, Default)]
struct Answer {
    outcome: Option<Result<(), Refusal>>,
    messages: Vec<Received>,
}

// === impl Exchange ===

impl<'a> Exchange<'a> {
    pub(crate) fn new(requests: &'a [Request], first: u32) -> Self {
        Self {
            requests,
            first,
            answers: requests.iter().map(|_| Answer::default()).collect(),
            bytes: 0,
            is_broken_off: false,
            is_interrupted: false,
        }
    }

    /// Returns whether no more answers are to be waited for.
    pub(crate) fn is_complete(&self) -> bool {
        let mut all = self.requests.iter().zip(&self.answers);
        self.is_broken_off
            || all.all(|(request, answer)| !is_answered(request) || answer.outcome.is_some())
    }

    /// Takes a datagram of the kernel. Messages about other requests are left out: answers to a batch whose time was over, and events.
    ///
    /// # Errors
    /// Why it cannot be understood. What it says after that is lost.
    pub(crate) fn take(&mut self, datagram: &[u8]) -> Result<(), &'static str> {
        for message in messages(datagram) {
            let message = message.map_err(|Torn| "a message is longer than its datagram")?;
            let index = message.sequence.wrapping_sub(self.first);
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            let (Some(request), Some(answer)) =
                (self.requests.get(index), self.answers.get_mut(index))
            else {
                continue;
            };
            self.is_interrupted |= message.flags & NLM_F_DUMP_INTR != 0 && is_dump(request);
            let outcome = match message.kind {
                NLMSG_NOOP => continue,
                NLMSG_OVERRUN => return Err("it says that data was lost"),
                NLMSG_ERROR => {
                    acknowledgement(&message).ok_or("an acknowledgement is too short")?
                }
                NLMSG_DONE => end_of_dump(&message),
                kind => {
                    self.bytes = self.bytes.saturating_add(message.body.len());
                    if self.bytes > REPLY_BYTES_MAX {
                        return Err("it has more than 64 MiB");
                    }
                    answer.messages.push(Received {
                        kind,
                        body: message.body.to_vec(),
                    });
                    continue;
                }
            };
            self.is_broken_off |= outcome.is_err() && !is_answered(request);
            if answer.outcome.is_none() {
                answer.outcome = Some(outcome);
            }
        }
        Ok(())
    }

    /// Returns what was asked, for errors about the batch as a whole.
    pub(crate) fn doing(&self) -> String {
        let mut all = self.requests.iter().zip(&self.answers);
        let first = all
            .find(|(request, answer)| is_answered(request) && answer.outcome.is_none())
            .map(|(request, _)| request);
        let request = first.or_else(|| self.requests.first());
        request.map_or_else(String::new, |request| request.doing().to_owned())
    }

    /// The messages that answer each request, in the order of the requests.
    ///
    /// # Errors
    /// The first refusal that does not say that it is so already.
    pub(crate) fn finish(self) -> Result<Vec<Vec<Received>>, NetlinkError> {
        let mut all = Vec::with_capacity(self.answers.len());
        for (request, answer) in self.requests.iter().zip(self.answers) {
            match answer.outcome {
                Some(Err(refusal)) if !request.is_done_by(refusal.errno) => {
                    return Err(NetlinkError::Refused {
                        doing: request.doing().to_owned(),
                        text: refusal.text,
                        source: refusal.errno,
                    });
                }
                _ => all.push(answer.messages),
            }
        }
        Ok(all)
    }
}

/// Returns whether the kernel answers a request also when it succeeds.
pub(crate) fn is_answered(request: &Request) -> bool {
    request.flags() & NLM_F_ACK != 0 || is_dump(request)
}

/// Only requests without an acknowledgement are dumps here: in those that make something, the same bits say how.
fn is_dump(request: &Request) -> bool {
    request.flags() & NLM_F_ACK == 0 && request.flags() & NLM_F_DUMP == NLM_F_DUMP
}

#[cfg(test)]
mod tests;
