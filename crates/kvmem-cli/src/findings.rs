//! *Findings*: what commands find out, for a program that draws it.
//!
//! `kvmem` prints results as text or JSON. A program that draws them runs the same commands with
//! findings of its own.

use kvmem::arena::{Progress, Receipt};
use kvmem::register::{MountReport, Plan, RegisterProgress};
use kvmem_tier::{Contents, DamagedValue};

use crate::output::Failure;
use crate::reuse::curve::HitCurve;
use crate::tier_command::inspect::InspectReport;
use crate::tier_command::verify::VerifyReport;

/// Receives what the commands find, before they print it. By default it is ignored.
pub trait Findings: Send + Sync {
    /// A curve of hit rates was computed.
    ///
    /// # Errors
    /// What was found cannot be drawn; here and below.
    fn curve(&self, _: &HitCurve) -> Result<(), Failure> {
        Ok(())
    }

    /// The file of a tier was inspected; its contents, if it can be opened.
    ///
    /// # Errors
    /// See [`curve`](Self::curve).
    fn inspected(&self, _: &InspectReport, _: Option<&Contents>) -> Result<(), Failure> {
        Ok(())
    }

    /// The values of a tier were verified.
    ///
    /// # Errors
    /// See [`curve`](Self::curve).
    fn verified(&self, _: &Verified<'_>) -> Result<(), Failure> {
        Ok(())
    }

    /// A step of setting memory up begins: its progress counts from now.
    fn step_begins(&self) {}

    /// This many bytes of addresses were mapped in the step.
    fn mapped(&self, _bytes: u64) {}

    /// Some memory was populated.
    fn populated(&self, _: &Progress) {}

    /// Memory was populated, registered or deregistered, with the registrars of these names.
    fn registering(&self, _names: &[String], _: &RegisterProgress) {}

    /// Memory was mounted.
    ///
    /// # Errors
    /// See [`curve`](Self::curve).
    fn mounted(&self, _: &Mounted<'_>) -> Result<(), Failure> {
        Ok(())
    }
}

/// The values of a tier that were verified.
#[derive(Debug)]
pub struct Verified<'a> {
    /// The report, as it is printed.
    pub report: &'a VerifyReport,
    /// The contents of the tier.
    pub contents: &'a Contents,
    /// The damaged values.
    pub damaged: &'a [DamagedValue],
    /// How many bytes were read after so many seconds.
    pub course: &'a [(f64, u64)],
}

/// Memory that was mounted.
#[derive(Debug)]
pub struct Mounted<'a> {
    /// Bytes that were asked for.
    pub size: u64,
    /// What was mapped.
    pub receipt: &'a Receipt,
    /// How it was registered, if it was.
    pub registered: Option<&'a MountReport>,
    /// How it would be registered, if that alone was asked for.
    pub plan: Option<&'a Plan>,
}

/// Findings that are printed only.
#[derive(Debug)]
pub(crate) struct Printed;

impl Findings for Printed {}
