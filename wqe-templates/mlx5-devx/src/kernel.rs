//! What the operating system lets a program do with a device.

use crate::Command;
use kbtp_device::DeviceEvent;
use kbtp_memory::Region;

/// Something that the kernel keeps for this program, and ends with it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(pub u64);

/// Memory that the device knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registered {
    /// The kernel's.
    pub handle: Handle,
    /// The device's number of it.
    pub umem: u32,
}

/// The port that queue pairs use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Port {
    /// From 1.
    pub number: u8,
    /// Its address.
    pub gid: [u8; 16],
    /// Which of its addresses that is.
    pub gid_index: u8,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// Code of its MTU.
    pub mtu: u8,
}

/// DEVX: commands of one program, objects that live as long as it does, memory, and the page where queues are rung.
///
/// An answer is as long as the caller made room for. A call fails if it could not be made; what the device says about a command is in
/// the answer.
pub trait Kernel {
    /// What the system says when it refuses.
    type Error: core::error::Error + 'static;

    /// Gives a command that makes nothing.
    ///
    /// # Errors
    /// What the system says.
    fn command(&mut self, request: &Command, answer: &mut [u8]) -> Result<(), Self::Error>;

    /// Gives a command that makes an object. Without a handle the device refused, and the answer says why.
    ///
    /// # Errors
    /// What the system says.
    fn create(
        &mut self,
        request: &Command,
        answer: &mut [u8],
    ) -> Result<Option<Handle>, Self::Error>;

    /// Gives a command that changes an object.
    ///
    /// # Errors
    /// What the system says.
    fn modify(
        &mut self,
        object: Handle,
        request: &Command,
        answer: &mut [u8],
    ) -> Result<(), Self::Error>;

    /// Gives a command that asks an object something.
    ///
    /// # Errors
    /// What the system says.
    fn query(
        &mut self,
        object: Handle,
        request: &Command,
        answer: &mut [u8],
    ) -> Result<(), Self::Error>;

    /// Ends an object.
    ///
    /// # Errors
    /// What the system says.
    fn destroy(&mut self, object: Handle) -> Result<(), Self::Error>;

    /// Lets the device reach memory; it is kept until [`unregister`](Self::unregister).
    ///
    /// # Errors
    /// What the system says.
    fn register(&mut self, region: &Region) -> Result<Registered, Self::Error>;

    /// Takes memory from the device.
    ///
    /// # Errors
    /// What the system says.
    fn unregister(&mut self, memory: Handle) -> Result<(), Self::Error>;

    /// A protection domain's number.
    ///
    /// # Errors
    /// What the system says.
    fn create_domain(&mut self) -> Result<u32, Self::Error>;

    /// The device's number of the page where queues are rung.
    fn uar(&self) -> u32;

    /// The device's number of the queue of events.
    fn eqn(&self) -> u8;

    /// The port.
    fn port(&self) -> Port;

    /// All that was written to memory before is there for the device before what is written after.
    fn barrier(&mut self);

    /// Writes eight octets to that page at once, after all that was written to memory before.
    fn ring(&mut self, at: usize, octets: [u8; 8]);

    /// The next event.
    fn next_event(&mut self) -> Option<DeviceEvent>;

    /// Called while something is waited for; `false` when that has been long enough, and it begins anew.
    fn wait(&mut self) -> bool;
}
