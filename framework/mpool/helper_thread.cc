// SPDX-License-Identifier: BSD-3-Clause
// API context; takes no lock and holds no reference.
#include "framework/mpool/helper_thread.h"

#include <sys/prctl.h>

#include <csignal>

#include "base/core/no_cancel.h"

namespace pinrail::mpool {

// The thread reads the object before it runs the body; the object stays until join().
void* HelperThread::run(void* self) {
  const auto* const helper = static_cast<const HelperThread*>(self);
  prctl(PR_SET_NAME, helper->name_);
  helper->body_(helper->arg_);
  return nullptr;
}

bool HelperThread::start(const char* name, Body body, void* arg) {
  name_ = name;
  body_ = body;
  arg_ = arg;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the new thread inherits the mask
  started_ = pthread_create(&thread_, nullptr, run, this) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started_;
}

void HelperThread::join() {
  if (!started_) return;
  const NoCancel no_cancel;
  pthread_join(thread_, nullptr);
  started_ = false;
}

void HelperThread::detach() {
  pthread_detach(pthread_self());
  started_ = false;
}

}  // namespace pinrail::mpool
