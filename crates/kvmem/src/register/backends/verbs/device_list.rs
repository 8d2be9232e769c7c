//! *Device list*: the library's list of devices.

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use super::abi::{IbvDevice, VerbsAbi};
use super::context::last_errno;
use crate::arena::Errno;

/// The list of devices. A device can be opened while the list exists; an open device outlives it.
pub(super) struct DeviceList<'a> {
    abi: &'a VerbsAbi,
    list: NonNull<*mut IbvDevice>,
    count: usize,
}

impl<'a> DeviceList<'a> {
    /// Returns the current list.
    pub(super) fn query(abi: &'a VerbsAbi) -> Result<DeviceList<'a>, Errno> {
        let mut count: c_int = 0;
        Errno::clear();
        // SAFETY: the number has the type that the call fills.
        let list = unsafe { (abi.get_device_list)(&mut count) };
        let list = NonNull::new(list).ok_or_else(last_errno)?;
        Ok(DeviceList { abi, list, count: usize::try_from(count).unwrap_or(0) })
    }

    /// Returns each device with its name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NonNull<IbvDevice>, String)> {
        (0..self.count).filter_map(|at| {
            // SAFETY: the list has `count` entries and is not freed.
            let device = NonNull::new(unsafe { *self.list.as_ptr().add(at) })?;
            // SAFETY: the device is on the list.
            let name = unsafe { (self.abi.get_device_name)(device.as_ptr()) };
            if name.is_null() {
                return None;
            }
            // SAFETY: the name is a string that is valid as long as the device.
            let name = unsafe { CStr::from_ptr(name) };
            Some((device, name.to_string_lossy().into_owned()))
        })
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        // SAFETY: the list came from the library, and no device is used through it any more.
        unsafe { (self.abi.free_device_list)(self.list.as_ptr()) };
    }
}
