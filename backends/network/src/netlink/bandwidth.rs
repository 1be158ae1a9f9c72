//! Limits of bandwidth: a token bucket on what a device sends, and a second device for what it receives, since only sending can wait.
//!
//! ```text
//! into the container:    bridge ─► tbf on the host's end ─► container
//! out of the container:  container ─► host's end ─► ifb, tbf on it ─► bridge
//! ```

use nix::errno::Errno;

use super::error::NetlinkError;
use super::link::NewLink;
use super::message::{Attributes, Request};
use super::uapi::{
    ETH_P_ALL, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, RTM_DELQDISC, RTM_NEWQDISC, RTM_NEWTFILTER,
    TC_ACT_STOLEN, TC_H_INGRESS, TC_H_ROOT, TC_LINKLAYER_ETHERNET, TC_U32_TERMINAL, TCA_ACT_KIND,
    TCA_ACT_OPTIONS, TCA_EGRESS_REDIR, TCA_KIND, TCA_MIRRED_PARMS, TCA_OPTIONS, TCA_TBF_BURST,
    TCA_TBF_PARMS, TCA_TBF_RATE64, TCA_U32_ACT, TCA_U32_SEL,
};

/// Length of `struct tcmsg`.
const TCMSG: usize = 20;
/// The handle `ffff:`, which is that of what is done with received packets.
const INGRESS: u32 = 0xffff_0000;
/// A frame's header beside the packet: Ethernet with one tag of a VLAN.
const FRAME_HEADER: u64 = 18;
/// Limit of the time that a packet may wait, in milliseconds, before others are dropped: as the CNI plugin has it.
const LATENCY_MS: u64 = 25;

/// A limit of what a device sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    bytes_per_second: u64,
    /// Number of bytes that may be sent at once after a pause.
    burst: u32,
    /// Number of bytes that may wait.
    queue: u32,
}

/// A new device of the kind `ifb`, which is up: it takes what another one has received, and sends it on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ifb {
    /// The device.
    pub link: NewLink,
}

// === impl Rate ===

impl Rate {
    /// A limit as orchestrators give it, in bits, for a device with this MTU in bytes. The burst is at least one packet, since a longer one
    /// would never be sent, and at most what the kernel has numbers for.
    ///
    /// # Errors
    /// [`NetlinkError::Value`] for less than one byte in a second.
    pub fn new(bits_per_second: u64, burst_bits: u64, mtu: u32) -> Result<Self, NetlinkError> {
        let bytes_per_second = bits_per_second / 8;
        if bytes_per_second == 0 {
            return Err(NetlinkError::Value {
                value: format!("a bandwidth of {bits_per_second} bits per second"),
                reason: "nothing could be sent with less than 8",
            });
        }
        let most = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let burst = (burst_bits / 8).max(u64::from(mtu) + FRAME_HEADER);
        let waiting = bytes_per_second.saturating_mul(LATENCY_MS) / 1000;
        Ok(Self {
            bytes_per_second,
            burst: most(burst),
            queue: most(waiting.saturating_add(burst)),
        })
    }

    fn put(self, all: &mut Attributes) {
        // struct tc_tbf_qopt: rate, peak rate, limit, buffer, mtu. A struct tc_ratespec has 12 bytes: the layer of the link is the
        // second one, the rate the last four. The kernel reads the buffer from TCA_TBF_BURST.
        let mut parameters = [0; 36];
        parameters[1] = TC_LINKLAYER_ETHERNET;
        let rate = u32::try_from(self.bytes_per_second);
        parameters[8..12].copy_from_slice(&rate.unwrap_or(u32::MAX).to_ne_bytes());
        parameters[24..28].copy_from_slice(&self.queue.to_ne_bytes());
        all.bytes(TCA_TBF_PARMS, &parameters);
        all.u32(TCA_TBF_BURST, self.burst);
        if rate.is_err() {
            all.u64(TCA_TBF_RATE64, self.bytes_per_second);
        }
    }
}

// === impl Ifb ===

impl Ifb {
    /// Makes it. Refused with `EEXIST` if there is a device of the name, with `EOPNOTSUPP` if the kernel has no such devices.
    #[must_use]
    pub fn create(&self) -> Request {
        let doing = format!(
            "make the device {} for a limit of bandwidth",
            self.link.name
        );
        self.link.create("ifb", doing)
    }
}

/// Limits what a device sends, instead of its limit of before. Refused with `ENOENT` if the kernel has no `tbf`.
#[must_use]
pub fn limit(link: u32, rate: Rate) -> Request {
    let doing = format!("limit what device {link} sends");
    let flags = NLM_F_CREATE | NLM_F_REPLACE;
    Request::new(RTM_NEWQDISC, flags, &header(link, 0, TC_H_ROOT, 0), doing)
        .acknowledged()
        .with(|all| {
            all.text(TCA_KIND, "tbf");
            all.nest(TCA_OPTIONS, |options| rate.put(options));
        })
}

/// Removes the limit of what a device sends. One that is gone, also with its device, is success.
#[must_use]
pub fn delete_limit(link: u32) -> Request {
    let doing = format!("remove the limit of what device {link} sends");
    Request::new(RTM_DELQDISC, 0, &header(link, 0, TC_H_ROOT, 0), doing)
        .acknowledged()
        .done_by(&[Errno::ENOENT, Errno::ENODEV])
}

/// Lets another device, an [`Ifb`], send on what a device receives. It ends with either device.
#[must_use]
pub fn redirect_ingress(link: u32, by: u32) -> [Request; 2] {
    let create = NLM_F_CREATE | NLM_F_EXCL;
    let doing = format!("look at what device {link} receives");
    let queue = Request::new(
        RTM_NEWQDISC,
        create,
        &header(link, INGRESS, TC_H_INGRESS, 0),
        doing,
    )
    .acknowledged()
    .with(|all| all.text(TCA_KIND, "ingress"));
    let doing = format!("let device {by} send what device {link} receives");
    // The priority of the filter, and the protocol in network byte order.
    let info = (1 << 16) | u32::from(ETH_P_ALL.to_be());
    let filter = Request::new(
        RTM_NEWTFILTER,
        create,
        &header(link, 0, INGRESS, info),
        doing,
    )
    .acknowledged()
    .with(|all| {
        all.text(TCA_KIND, "u32");
        all.nest(TCA_OPTIONS, |options| put_redirection(options, by));
    });
    [queue, filter]
}

/// A filter of the kind `u32` that every packet matches, with the action `mirred`.
fn put_redirection(options: &mut Attributes, by: u32) {
    // struct tc_u32_sel of 16 bytes: flags, and in the third byte how many keys there are; then a struct tc_u32_key of 16 bytes.
    let mut selector = [0; 32];
    selector[0] = TC_U32_TERMINAL;
    selector[2] = 1;
    options.bytes(TCA_U32_SEL, &selector);
    // struct tc_mirred: index, capabilities, action, two counts, what is done with the packet, device.
    let mut parameters = [0; 28];
    parameters[8..12].copy_from_slice(&TC_ACT_STOLEN.to_ne_bytes());
    parameters[20..24].copy_from_slice(&TCA_EGRESS_REDIR.to_ne_bytes());
    parameters[24..].copy_from_slice(&by.to_ne_bytes());
    options.nest(TCA_U32_ACT, |actions| {
        actions.nest(1, |action| {
            action.text(TCA_ACT_KIND, "mirred");
            action.nest(TCA_ACT_OPTIONS, |all| {
                all.bytes(TCA_MIRRED_PARMS, &parameters)
            });
        });
    });
}

/// A `struct tcmsg`: family and padding, index of the device, handle, parent, info.
fn header(link: u32, handle: u32, parent: u32, info: u32) -> [u8; TCMSG] {
    let mut bytes = [0; TCMSG];
    for (index, number) in [link, handle, parent, info].into_iter().enumerate() {
        let at = 4 + 4 * index;
        bytes[at..at + 4].copy_from_slice(&number.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_in_bytes_and_lets_a_packet_through() {
        for (bits, burst_bits, mtu, expected) in [
            (
                8_000_000,
                800_000,
                1_500,
                Some((1_000_000, 100_000, 125_000)),
            ),
            // A burst that is less than a packet.
            (8_000, 8, 1_500, Some((1_000, 1_518, 1_543))),
            (8, 0, 68, Some((1, 86, 86))),
            (7, 8_000, 1_500, None),
            (0, 0, 1_500, None),
            // Kubernetes' burst, and more than the kernel has numbers for.
            (
                80_000_000_000,
                u64::from(u32::MAX / 2),
                9_000,
                Some((10_000_000_000, 268_435_455, 518_435_455)),
            ),
            (
                u64::MAX,
                u64::MAX,
                u32::MAX,
                Some((u64::MAX / 8, u32::MAX, u32::MAX)),
            ),
        ] {
            let rate = Rate::new(bits, burst_bits, mtu).ok();
            let rate = rate.map(|rate| (rate.bytes_per_second, rate.burst, rate.queue));
            assert_eq!(rate, expected, "{bits} {burst_bits} {mtu}");
        }
    }
}
