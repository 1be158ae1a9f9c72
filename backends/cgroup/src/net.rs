//! Traffic of a network namespace, from `/proc/<pid>/net/dev`.

use switchyard_core::stats::InterfaceStats;

/// The interfaces in the text of a `net/dev` file, in its order, loopback included. Other lines are skipped.
#[must_use]
pub fn parse(text: &str) -> Vec<InterfaceStats> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<InterfaceStats> {
    // name: 8 numbers for receiving (bytes packets errs ...), 8 for sending. The name itself may contain a
    // colon.
    let (name, numbers) = line.rsplit_once(':')?;
    let numbers: Vec<u64> = numbers
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    let name = name.trim();
    if name.is_empty() || numbers.len() < 12 {
        return None;
    }
    Some(InterfaceStats {
        name: name.to_owned(),
        rx_bytes: numbers[0],
        rx_packets: numbers[1],
        rx_errors: numbers[2],
        rx_dropped: numbers[3],
        tx_bytes: numbers[8],
        tx_packets: numbers[9],
        tx_errors: numbers[10],
        tx_dropped: numbers[11],
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:    2776      37    0    0    0     0          0         0     2776      37    0    0    0     0       0          0
  eth0:1215645    2751    4    0    0     0          0         0  1782404    4324    5    6    0     0       0          0
";

    #[test]
    fn interface_counters_are_read() {
        let read = parse(TEXT);
        assert_eq!(
            read.iter()
                .map(|link| link.name.as_str())
                .collect::<Vec<_>>(),
            ["lo", "eth0"]
        );
        let eth0 = &read[1];
        assert_eq!(
            (eth0.rx_bytes, eth0.rx_errors, eth0.tx_bytes, eth0.tx_errors),
            (1_215_645, 4, 1_782_404, 5)
        );
        assert_eq!(
            (
                eth0.rx_packets,
                eth0.rx_dropped,
                eth0.tx_packets,
                eth0.tx_dropped
            ),
            (2751, 0, 4324, 6)
        );
    }

    #[test]
    fn interfaces_of_this_process_are_read() {
        let text = std::fs::read_to_string("/proc/self/net/dev").unwrap();
        assert!(parse(&text).iter().any(|link| link.name == "lo"));
    }

    proptest! {
        #[test]
        fn any_text_parses_without_panic(text in "([a-z0-9: \n]|\\PC){0,120}") {
            let _ = parse(&text);
        }
    }
}
