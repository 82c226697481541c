//! The limits of the multiplexer, the same at both ends of a link.

use yamux::Config;

/// How many streams one connection carries; at one more the connection is dropped.
pub const MAX_STREAMS: usize = 256;

/// The most one end can make the other hold: 256 KiB for each stream, 64 MiB in all.
const RECEIVE_WINDOW: usize = MAX_STREAMS * 256 * 1024;

/// How much of one stream is sent before another has its turn.
const SPLIT: usize = 16 * 1024;

/// How either end of a link multiplexes.
#[must_use]
pub fn mux_config() -> Config {
    let mut config = Config::default();
    config
        .set_max_num_streams(MAX_STREAMS)
        .set_max_connection_receive_window(Some(RECEIVE_WINDOW))
        .set_split_send_size(SPLIT);
    config
}
