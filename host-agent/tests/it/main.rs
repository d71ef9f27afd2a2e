//! Agent and target over a real socket, in one process and in several.

#[cfg(test)]
mod common;
#[cfg(test)]
mod hand_over;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod processes;
#[cfg(test)]
mod sockets;
