// Declarations that the documentation's excerpts of C programs need to compile.
#ifndef DOCUMENTED_H
#define DOCUMENTED_H

#include <lgreco_train.h>

void check(lgreco_status status);
int32_t on_request(void *user, const lgreco_request *request);
void perform(const lgreco_request *request);
void backward(void *const *gradients);
void start(void *thread, lgreco_plan_task *task);

extern uint32_t rank, ranks;
extern int steps;
extern double learning_rate;
extern lgreco_layer layers[2];
extern size_t indices[2];
extern void *gradients[2];
extern lgreco_controller *controller;
extern lgreco_report report;
extern int thread;

#endif
