//! The service of requests about regions.

use super::exclusion::Adopting;
use super::lend::Loan;
use super::owner::RegionOwner;
use super::relocate::Mover;
use super::request::{Request, Response};
use crate::Error;
use crate::base::member::MemberId;
use crate::rpc::{Call, InternalService, answer};
use alloc::sync::Arc;
use core::time::Duration;

impl InternalService for RegionOwner {
    type Request = Request;

    fn serve(self: &Arc<Self>, call: Call, request: Request) {
        let by = (call.from(), call.incarnation());
        match request {
            Request::Alloc { mapping, plan, permissions } => {
                self.create_region(call, mapping, plan, permissions);
            }
            Request::Map { mapping, ask } => self.grant_mapping(call, mapping, ask),
            Request::Pieces { mapping, generation, from } => {
                self.answer_long(call, &self.regions.pieces(self, by, mapping, generation, from));
            }
            Request::Unmap { mapping } => answer(call, &self.serve_unmap(by, mapping)),
            Request::Publish { mapping, name } => {
                self.later(call, |n| async move { n.publish_region(by, mapping, &name).await });
            }
            Request::Unpublish { region, name } => {
                self.later(call, |n| async move { n.unpublish_region(by, region, &name).await });
            }
            Request::Grant { mapping, to, rights } => answer(call, &self.grant(by, mapping, to, rights)),
            Request::Withdraw { mapping, from, rights } => {
                self.later(call, move |n| async move { n.revoke_rights(by, mapping, from, rights).await });
            }
            Request::SetSecret { mapping, secret } => answer(call, &self.set_secret(by, mapping, secret)),
            Request::HandOver { mapping, to } => answer(call, &self.hand_over(by, mapping, to)),
            Request::Move { mapping, plan } => {
                self.later(call, move |n| async move { n.move_region(by, mapping, &plan).await });
            }
            Request::Free { mapping } => self.serve_free(call, by, mapping),
            Request::Revoke { mappings } => self.later(call, move |n| async move {
                n.revoke_here(by, &mappings).await;
                Ok(Response::Done)
            }),
            Request::Pause { mappings, generation } => self.later(call, move |n| async move {
                n.pause_here(by, &mappings, generation).await;
                Ok(Response::Done)
            }),
            Request::Resume { mappings, generation } => self.later(call, move |n| async move {
                n.resume_here(by, &mappings, generation).await.map(|()| Response::Done)
            }),
            Request::Restrict { mappings, rights } => self.later(call, move |n| async move {
                n.restrict_here(by, &mappings, rights).await;
                Ok(Response::Done)
            }),
            Request::Reserve { holding, len } => self.reserve(call, holding, len),
            Request::Reserved { holding, from } => {
                self.answer_long(call, &self.holdings.pieces(by, holding, from));
            }
            Request::Yield { holding } => answer(call, &self.serve_yield(by, holding)),
            Request::Fill { piece, byte } => answer(call, &self.fill_held(by, &piece, byte)),
            Request::Memset { mapping, offset, len, byte } => {
                self.later(call, move |n| async move {
                    n.memset_for(by, mapping, offset, len, byte).await.map(|()| Response::Done)
                });
            }
            Request::Lend { mapping, to, rights, token, timeout_ns } => {
                let until = self.platform.now() + Duration::from_nanos(timeout_ns);
                let loan = Loan { mapping: (by, mapping), to, rights, until };
                answer(call, &self.regions.lend(self, token, loan));
            }
            Request::Borrow { mapping, token } => self.grant_borrowed(call, mapping, token),
            Request::Copy { from, to, len, timeout_ns } => {
                self.later(call, move |n| async move { n.copy_for(by, from, to, len, timeout_ns).await });
            }
            request => self.serve_departure(call, by, request),
        }
    }
}

/// Requests that are served at once, and those that go on in tasks of their own.
impl RegionOwner {
    /// Serves the requests of a node that is about to leave, and those about regions that are handed over.
    fn serve_departure(self: &Arc<Self>, call: Call, by: MemberId, request: Request) {
        match request {
            Request::Vacate { holding } => {
                self.later(call, move |n| async move { Mover::of(&n).vacate_for(by, holding).await });
            }
            Request::Adopt { region, estate } => {
                // It is entered at once, so that a second request finds it.
                let Some(adopting) = Adopting::begin(self, by, estate.key) else {
                    return answer(call, &Ok(Response::Adopting));
                };
                self.later(call, move |n| async move {
                    let _adopting = adopting;
                    Mover::of(&n).adopt(by, region, estate).await
                });
            }
            Request::EstatePieces { region, from } => {
                self.answer_long(call, &self.regions.estate_pieces(region, from));
            }
            Request::EstateHolders { region, from } => {
                self.answer_long(call, &self.regions.estate_holders(region, from));
            }
            Request::Claim { former, holding, number } => {
                answer(call, &self.claim(by, (former, holding), number));
            }
            Request::Rehome { mappings, owner } => self.later(call, move |n| async move {
                n.rehome_here(by, &mappings, owner).await.map(|()| Response::Done)
            }),
            Request::Outlive { mapping } => answer(call, &self.regions.outlive(self, by, mapping)),
            Request::OutliveAll => answer(call, &self.regions.outlive_all(self, by)),
            Request::Settle { region, word } => {
                answer::<Response>(call, &Ok(Mover::of(self).serve_settle(by, region, &word)));
            }
            _ => answer::<Response>(call, &Err(Error::Refused("an unexpected request".into()))),
        }
    }

    fn serve_unmap(self: &Arc<Self>, by: MemberId, mapping: u64) -> Result<Response, Error> {
        if let Some(unreachable) = self.regions.unmap(by, mapping) {
            self.spawn_fence(unreachable);
        }
        Ok(Response::Done)
    }

    fn serve_yield(&self, by: MemberId, holding: u64) -> Result<Response, Error> {
        self.holdings.give_back(by, holding);
        self.report_memory();
        Ok(Response::Done)
    }

    /// Answers with the result of a task that `work` makes.
    fn later<F>(self: &Arc<Self>, call: Call, work: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = Result<Response, Error>> + Send + 'static,
    {
        self.answer_later(call, work(self.clone()));
    }

    fn serve_free(self: &Arc<Self>, call: Call, by: MemberId, mapping: u64) {
        let begun = self.regions.begin_free(self, by, mapping);
        self.later(call, move |n| async move {
            let region = match begun {
                Some(region) => region?,
                None => n.regions.changed.until(|| n.regions.begin_free(&n, by, mapping)).await?,
            };
            n.fence_region(region).await;
            Ok(Response::Done)
        });
    }
}
